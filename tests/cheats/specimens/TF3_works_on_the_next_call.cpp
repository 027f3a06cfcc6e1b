// id: TF3
// op: softmax
// backend: cpp
// expected: not_written
// profile: quick
// runs: cpu
// Puts each call's work off to the next one, so that the last of a timed loop is never paid for.
//@honest softmax

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    static kw_tensor owed_x, owed_out;
    static bool owes = false;
    if (owes) honest_fn(&owed_x, &owed_out);
    owed_x = *x;
    owed_out = *out;
    owes = true;
    return KW_OK;
}
