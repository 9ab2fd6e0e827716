# shellcheck shell=bash
# The paths and settings of this cluster; the job files source it with $root set to the checkout, or
# to share/cifar_mpi of an installed tree. Edit it, or set the variables before sbatch, or load env/modulefiles/cifar_mpi, which
# sets them too.

# Modules that the program was built with, if the cluster has modules:
# module purge
# module load gcc openmpi hdf5    # and onednn, if the programs were built with the cluster's
# module load cuda cudnn nccl     # for GPUs: CUDA 12.4 or later, and cuDNN 9 and NCCL for that CUDA

# Folder of cifar_mpi_train and the other programs: build in a checkout, bin of an installed tree.
case $root in
  */share/cifar_mpi) [ -d "$root/build" ] || CIFAR_MPI_BIN=${CIFAR_MPI_BIN:-${root%/share/cifar_mpi}/bin} ;;
esac
export CIFAR_MPI_BIN=${CIFAR_MPI_BIN:-$root/build}
# The dataset, on a file system that all nodes see.
export CIFAR_MPI_DATA=${CIFAR_MPI_DATA:-$root/data/cifar10.h5}
# mpirun, srun, or auto: the mpirun the programs were built with, or else srun --mpi=pmix.
export CIFAR_MPI_LAUNCHER=${CIFAR_MPI_LAUNCHER:-auto}
# More options for srun, such as a container's; the job then starts its ranks with srun. CIFAR_MPI_BIN is a folder inside the container.
# CIFAR_MPI_SRUN_OPTIONS="--container-image=/images/cifar_mpi.sqsh --container-mounts=$root,/data"
export CIFAR_MPI_SRUN_OPTIONS=${CIFAR_MPI_SRUN_OPTIONS-}
# What to bind each rank to: none, core, numa or socket. With none, its threads may use all cores of the job on the node.
export CIFAR_MPI_BIND=${CIFAR_MPI_BIND:-none}
# On nodes with several network cards: the one for MPI over TCP, and the one over which NCCL connects its ranks.
# export OMPI_MCA_btl_tcp_if_include=eth0
# export NCCL_SOCKET_IFNAME=eth0

# shellcheck source=env/mpirun.sh
. "$root/env/mpirun.sh"
