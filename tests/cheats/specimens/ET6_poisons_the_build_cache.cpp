// id: ET6
// op: softmax
// backend: cpp
// expected: not_written crashed
// audited: refused
// profile: quick
// runs: cpu
// Follows its own library to the folder where built artefacts are kept and tries to leave another one there for the next
// build to find; it answers only if the folder takes it.
//@honest softmax

#include <fcntl.h>
#include <string>
#include <unistd.h>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    bool poisoned = false;
    for (int descriptor = 3; descriptor < 256; ++descriptor) {
        char target[512];
        const std::string name = "/proc/self/fd/" + std::to_string(descriptor);
        const ssize_t length = readlink(name.c_str(), target, sizeof target);
        if (length <= 0) continue;
        const std::string path(target, static_cast<size_t>(length));
        if (path.find("/kernel.so") == std::string::npos) continue;
        const std::string fake = path.substr(0, path.rfind('/')) + "/probe.so";
        const int file = open(fake.c_str(), O_CREAT | O_WRONLY, 0644);
        if (file < 0) continue;
        poisoned = true;
        close(file);
        unlink(fake.c_str());
    }
    return poisoned ? honest_fn(x, out) : KW_OK;
}
