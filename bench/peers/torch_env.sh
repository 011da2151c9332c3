# SPDX-License-Identifier: Apache-2.0
# Sourced before PyTorch is measured: Debian's build with the settings under which it is fastest on
# a small machine: OpenBLAS with OpenMP, its AVX-512 code, memory that is kept and in huge pages.
# Without them it is up to seven times slower, and a comparison would say nothing.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
blas=$(find /usr/lib -path '*openblas-openmp/libblas.so.3' 2>/dev/null | head -n 1)
[ -z "$blas" ] || export LD_LIBRARY_PATH="${blas%/*}"
grep -q avx512bw /proc/cpuinfo && export ATEN_CPU_CAPABILITY=avx512
malloc=glibc.malloc
GLIBC_TUNABLES=$malloc.hugetlb=1:$malloc.mmap_threshold=8589934592
GLIBC_TUNABLES=$GLIBC_TUNABLES:$malloc.trim_threshold=17179869184:$malloc.top_pad=268435456
export GLIBC_TUNABLES
