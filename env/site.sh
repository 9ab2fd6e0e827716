# shellcheck shell=bash
# The one place that says where things are on this cluster; the job files source it on every node they start on, with
# $root set to the checkout. Edit it, or set the variables before sbatch, or load env/modulefiles/cifar_mpi, which sets them too.

# Modules that the program was built with, if the cluster has modules:
# module purge
# module load gcc openmpi hdf5 onednn

# Folder of cifar_mpi_train and the other programs.
export CIFAR_MPI_BIN=${CIFAR_MPI_BIN:-$root/build}
# The dataset, on a file system that all nodes see.
export CIFAR_MPI_DATA=${CIFAR_MPI_DATA:-$root/data/cifar10.h5}
# mpirun, srun, or auto: the mpirun the programs were built with, or else srun --mpi=pmix.
export CIFAR_MPI_LAUNCHER=${CIFAR_MPI_LAUNCHER:-auto}
# Where it matters which network card MPI takes: export OMPI_MCA_btl_tcp_if_include=eth0

# shellcheck source=env/mpirun.sh
. "$root/env/mpirun.sh"
