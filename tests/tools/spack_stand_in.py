"""spack_stand_in.py PACKAGE.py: prints what a Spack recipe depends on and defines, for each choice of its variants.

Stands in for the few names of spack.package that the recipe uses; a recipe that uses others fails.
"""
import contextlib
import importlib.util
import itertools
import sys
import types

variants = []


class Builder:
    run_tests = False

    def __init__(self, chosen):
        satisfies = lambda text: chosen[text[1:]] == (text[0] == "+")
        arch = types.SimpleNamespace(value=("80", "90"))
        self.spec = types.SimpleNamespace(satisfies=satisfies, variants={"cuda_arch": arch})
        self.define_from_variant = lambda name, variant: self.define(name, chosen[variant])

    def define(self, name, value):
        print("define", name, value)
        return name


def module(name, **names):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(names)


def ignored(*_, **__):
    pass


module("spack_repo")
module("spack_repo.builtin")
module("spack_repo.builtin.build_systems")
module("spack_repo.builtin.build_systems.cmake", CMakePackage=Builder)
module("spack_repo.builtin.build_systems.cuda", CudaPackage=type("CudaPackage", (), {}))
module("spack")
module(
    "spack.package",
    depends_on=lambda spec, **_: print("depends_on", spec),
    variant=lambda name, **_: variants.append(name),
    when=lambda _: contextlib.nullcontext(),
    license=ignored,
    version=ignored,
    conflicts=ignored,
    generator=ignored,
    Executable=None,
    join_path=None,
)
spec = importlib.util.spec_from_file_location("package", sys.argv[1])
package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
print("git", package.CifarMpi.git)
names = variants + ["cuda"]
for choice in itertools.product([False, True], repeat=len(names)):
    package.CifarMpi(dict(zip(names, choice))).cmake_args()
