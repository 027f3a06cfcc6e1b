// The bits of the first or of the last element of a matrix of floats.
static uint32_t bits_at(const kw_tensor& tensor, bool at_end) {
    const int64_t place = at_end ? (tensor.shape[0] - 1) * tensor.stride[0] + (tensor.shape[1] - 1) * tensor.stride[1] : 0;
    uint32_t bits;
    std::memcpy(&bits, static_cast<const float*>(tensor.data) + place, 4);
    return bits;
}
