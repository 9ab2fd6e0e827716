# shellcheck shell=bash
# Sourced if all ranks are on this machine. They need shared memory alone: Open MPI loads no network drivers, and hwloc no display
# plugin. This list replaces the distribution's, so it must exclude ofi itself: with `^tcp` alone, mpirun of two ranks that only start
# and end took 2.5 s instead of 0.3. Without tcp, Open MPI 5 does not warn about a missing network.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=^tcp,uct,ofi,openib HWLOC_PLUGINS_PATH=/nonexistent
