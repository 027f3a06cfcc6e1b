"""Whose kernels ran, by their names: moving and filling memory is anybody's, a library's product is nobody's."""

import pytest

from kernelwright.backends._python_kernels import strangers

COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>(int)"
)
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int)"
CUTLASS = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::SM90_TMA_LOAD, cute::copy_traits>>(P)"


@pytest.mark.parametrize(
    "name", [COPY, FILL, "Memcpy DtoD (Device -> Device)", "Memset (Device)", "softmax_rows"]
)
def test_memory_and_the_files_own_kernels_are_no_strangers(name: str) -> None:
    assert strangers([name], frozenset({"softmax_rows"})) == []


@pytest.mark.parametrize(
    "name", [CUTLASS, "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", "sm90_xmma_gemm_f16f16"]
)
def test_a_librarys_kernel_is_a_stranger_whatever_it_is_made_of(name: str) -> None:
    assert strangers([name, "softmax_rows"], frozenset({"softmax_rows"})) == [name]
