# shellcheck shell=bash
# Sourced for ranks of tests, which share the cores with other tests. Ranks that wait yield, and programs start in less processor
# time: they need not restart themselves to set GOMP_SPINCOUNT, and malloc keeps freed memory and uses huge pages, so there are
# fewer page faults. A run of one step takes two thirds of the time. Large arrays stay mapped when they are freed, so a use after
# that does not fault; builds with sanitizers find it.
export OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1 GOMP_SPINCOUNT=1000
export GLIBC_TUNABLES=glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=1073741824:glibc.malloc.hugetlb=1
