# shellcheck shell=bash
# Sourced by the tools, the jobs and users of mpirun: lets it start as root, in containers and with fewer
# cores than ranks. OpenMPI 4 reads OMPI_*, OpenMPI 5 PRTE_* as well; the other version's variables do no harm.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
# Plain mpirun binds each of two ranks to one core; a rank's threads would then share it.
export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
