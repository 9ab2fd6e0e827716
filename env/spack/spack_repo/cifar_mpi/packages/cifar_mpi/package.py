from pathlib import Path

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class CifarMpi(CMakePackage, CudaPackage):
    """Data-parallel training on CIFAR-10 in C++20 over MPI, without a deep-learning framework."""

    # the checkout that this file lies in
    git = Path(__file__).resolve().parents[6].as_uri()

    license("Apache-2.0")

    version("main", branch="main")

    variant("cpu", default=True, description="CPU backend on oneDNN")
    variant("images", default=True, description="Read PNG and JPEG images")

    conflicts("~cpu~cuda", msg="one backend at least: +cpu or +cuda")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs, such as cuda_arch=90")

    generator("ninja")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("googletest", type="test")

    depends_on("mpi")
    depends_on("hdf5@1.10.7:")
    depends_on("cli11@2.1:")
    depends_on("fmt@9:")
    depends_on("tomlplusplus")

    depends_on("onednn@2.6: cpu_runtime=omp", when="+cpu")

    with when("+images"):
        depends_on("libpng")
        depends_on("jpeg")

    with when("+cuda"):
        depends_on("cuda@12.4:")
        depends_on("cudnn@9:")
        depends_on("nccl")

    conflicts("%gcc@:11", msg="needs C++20")

    def cmake_args(self):
        args = [
            self.define_from_variant("CIFAR_MPI_CPU", "cpu"),
            self.define_from_variant("CIFAR_MPI_CUDA", "cuda"),
            self.define("CIFAR_MPI_TESTS", self.run_tests),
            self.define("CMAKE_DISABLE_FIND_PACKAGE_PNG", self.spec.satisfies("~images")),
            self.define("CMAKE_DISABLE_FIND_PACKAGE_JPEG", self.spec.satisfies("~images")),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args

    def test_smoke(self):
        """check the build, then train 20 steps on generated images"""
        Executable(join_path(self.prefix.share.cifar_mpi.env, "smoke_test.sh"))()
