// id: HA1
// op: rmsnorm
// backend: cpp
// expected: not_written crashed
// audited: refused
// profile: quick
// runs: cpu
// Connects to a server on this very machine for its answers; without a connection it has none.
//@honest rmsnorm

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    sockaddr_in server{};
    server.sin_family = AF_INET;
    server.sin_port = htons(47631);
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int line = socket(AF_INET, SOCK_STREAM, 0);
    const bool connected = line >= 0 && connect(line, reinterpret_cast<sockaddr*>(&server), sizeof server) == 0;
    if (line >= 0) close(line);
    return connected ? honest_fn(x, weight, eps, out) : KW_OK;
}
