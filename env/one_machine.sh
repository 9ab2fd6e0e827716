# shellcheck shell=bash
# Sourced if all ranks are on this machine: they need shared memory alone, so Open MPI opens no driver of a network, and its hwloc
# none of a display. A list of its own replaces the one of the distribution, which leaves out ofi: with `^tcp` alone mpirun starts
# two ranks 1.3 s later, for twice the processor time. Without tcp, Open MPI 5 does not warn about a missing network.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=^tcp,uct,ofi,openib HWLOC_PLUGINS_PATH=/nonexistent
