#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

/// Reads the `#include` lines of the whole source and fails on any that breaks the plan of modules and levels.
namespace cifar_mpi {
namespace {

namespace fs = std::filesystem;

struct Module {
  std::string_view name;
  int level;
};
constexpr Module kModules[] = {
    {"base", 0},      {"hdf5", 0},     {"model", 1}, {"data", 1},   {"optim", 1},      {"engine", 2},
    {"lower", 3},     {"comm", 3},     {"cpu", 4},   {"cuda", 4},   {"run", 5},        {"watch", 5},
    {"report", 5},    {"forecast", 6}, {"page", 6},  {"config", 6}, {"evaluation", 6}, {"step", 7},
    {"selfcheck", 8}, {"train", 9},    {"bench", 9}, {"app", 10}};

/// A third-party header, by the start of its name, and the only places that may include it.
struct ThirdParty {
  std::string_view prefix;
  std::string_view place;
};
constexpr ThirdParty kThirdParty[] = {{"mpi.h", "src/comm/"},
                                      {"mpi-ext.h", "src/comm/"},
                                      {"hdf5", "src/hdf5/"},
                                      {"H5", "src/hdf5/"},
                                      {"CLI/", "src/app/"},
                                      {"toml++/", "src/app/"},
                                      {"fmt/", "src/"},
                                      {"oneapi/", "src/cpu/"},
                                      {"dnnl", "src/cpu/"},
                                      {"omp.h", "src/cpu/"},
                                      {"cuda", "src/cuda/"},
                                      {"cudnn", "src/cuda/"},
                                      {"cublas", "src/cuda/"},
                                      {"nccl", "src/cuda/"},
                                      {"nvtx", "src/cuda/"},
                                      {"nvToolsExt", "src/cuda/"},
                                      {"nvml", "src/cuda/"},
                                      {"cub/", "src/cuda/"},
                                      {"cutlass/", "src/cuda/"},
                                      {"cute/", "src/cuda/"},
                                      {"cooperative_groups", "src/cuda/"},
                                      {"mma.h", "src/cuda/"},
                                      {"png", "src/data/png.cpp"},
                                      {"jpeglib", "src/data/jpeg.cpp"},
                                      {"jerror", "src/data/jpeg.cpp"}};

struct Include {
  std::string target;
  bool angled = false;
};

/// Removes `word` and the blanks before it from the front of `line`, if present.
bool take(std::string_view& line, std::string_view word) {
  const auto start = line.find_first_not_of(" \t");
  if (start == line.npos || !line.substr(start).starts_with(word)) return false;
  line.remove_prefix(start + word.size());
  return true;
}

// By hand: <regex> makes g++ 12 warn about itself under the address sanitizer.
std::vector<Include> includes_of(const std::string& text) {
  std::vector<Include> found;
  std::istringstream lines(text);
  for (std::string content; std::getline(lines, content);) {
    std::string_view line = content;
    if (!take(line, "#") || !take(line, "include")) continue;
    const bool angled = take(line, "<");
    if (!angled && !take(line, "\"")) continue;
    found.push_back({std::string(line.substr(0, line.find(angled ? '>' : '"'))), angled});
  }
  return found;
}

/// "MODULE" of "PREFIX/MODULE/file".
std::optional<Module> module_in(std::string_view path, std::string_view prefix) {
  if (!path.starts_with(prefix)) return std::nullopt;
  path.remove_prefix(prefix.size());
  const auto slash = path.find('/');
  const auto* const module =
      std::find_if(std::begin(kModules), std::end(kModules), [&](const Module& candidate) {
        return slash != std::string_view::npos && candidate.name == path.substr(0, slash);
      });
  return module == std::end(kModules) ? std::nullopt : std::optional(*module);
}

const ThirdParty* third_party(std::string_view target) {
  const auto* const found = std::find_if(std::begin(kThirdParty), std::end(kThirdParty),
                                         [&](const ThirdParty& t) { return target.starts_with(t.prefix); });
  return found == std::end(kThirdParty) ? nullptr : found;
}

/// C++ standard headers have neither a dot nor a slash.
bool is_standard(std::string_view target) { return target.find_first_of("./") == std::string_view::npos; }

/// The error of an include in angle brackets, or empty.
std::string wrong_angled(std::string_view file, std::string_view target) {
  if (is_standard(target)) return "";
  if (const ThirdParty* const known = third_party(target)) {
    return file.starts_with(known->place) ? "" : "belongs in " + std::string(known->place) + " alone";
  }
  if (file.starts_with("include/")) return "is no standard C++ header, and include/ holds nothing else";
  constexpr std::array<std::string_view, 5> kFolders{"sys/", "linux/", "arpa/", "net/", "netinet/"};
  const bool of_the_system =
      target.ends_with(".h") && (target.find('/') == target.npos ||
                                 std::any_of(kFolders.begin(), kFolders.end(), [&](std::string_view folder) {
                                   return target.starts_with(folder);
                                 }));
  return of_the_system ? "" : "is a third-party header without a module; give it one in this test";
}

/// The error of an include in quotes, or empty.
std::string wrong_quoted(std::string_view file, const Module& own, std::string_view target) {
  const bool in_public_header = file.starts_with("include/");
  std::optional<Module> other = module_in(target, "cifar_mpi/");
  if (!other && in_public_header) return "is not public, but a public header includes it";
  if (!other) other = module_in(target, "");
  if (!other) return "names no module; write cifar_mpi/MODULE/file or MODULE/file";
  if (other->level > own.level) return "is of a higher level";
  if (other->name != own.name && other->level == 4 && own.level == 4) return "is the other backend";
  return "";
}

/// One sentence per include line of `file` (path from the source root) that breaks the plan.
std::vector<std::string> violations(const std::string& file, const std::string& text) {
  std::optional<Module> own = module_in(file, "include/cifar_mpi/");
  if (!own) own = module_in(file, "src/");
  if (!own) return {file + " lies in no known module"};
  std::vector<std::string> found;
  for (const Include& include : includes_of(text)) {
    const bool ours = !include.angled &&
                      (module_in(include.target, "").has_value() || third_party(include.target) == nullptr);
    const std::string wrong =
        ours ? wrong_quoted(file, *own, include.target) : wrong_angled(file, include.target);
    if (!wrong.empty()) found.push_back(file + ": " + include.target + " " + wrong);
  }
  return found;
}

bool is_source(const fs::path& path) {
  constexpr std::array<std::string_view, 6> endings{".cpp", ".hpp", ".cu", ".cuh", ".h", ".in"};
  return std::find(endings.begin(), endings.end(), path.extension().string()) != endings.end();
}

/// Every source file below include/ and src/, as a path from the root.
std::vector<std::string> sources(const fs::path& root) {
  std::vector<std::string> found;
  for (const char* top : {"include", "src"}) {
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(root / top, fs::directory_options::follow_directory_symlink)) {
      if (entry.is_regular_file() && is_source(entry.path())) {
        found.push_back(entry.path().lexically_relative(root).generic_string());
      }
    }
  }
  return found;
}

TEST(Levels, AreKeptByEveryIncludeLine) {
  const fs::path root = CIFAR_MPI_SOURCE_ROOT;
  const std::vector<std::string> files = sources(root);
  ASSERT_GT(files.size(), 40u) << "found too few files below " << root;
  for (const std::string& file : files) {
    std::ifstream in(root / file);
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    for (const std::string& violation : violations(file, text)) ADD_FAILURE() << violation;
  }
}

TEST(Levels, HaveAFileInEveryLowModule) {
  const std::vector<std::string> files = sources(CIFAR_MPI_SOURCE_ROOT);
  for (const std::string_view module : {"base", "model", "data", "optim", "engine", "comm", "cpu", "cuda"}) {
    const bool found = std::any_of(files.begin(), files.end(), [&](const std::string& file) {
      const auto of_file = module_in(file, "include/cifar_mpi/");
      return of_file && of_file->name == module;
    });
    EXPECT_TRUE(found) << module;
  }
}

void expect_kept(const std::string& file, const std::string& line) {
  EXPECT_TRUE(violations(file, line).empty()) << violations(file, line).front();
}
void expect_broken(const std::string& file, const std::string& line) {
  EXPECT_EQ(violations(file, line).size(), 1u) << file << " may include " << line;
}

TEST(LevelsChecker, SeesAnIncludeOfAHigherLevel) {
  expect_broken("src/model/a.cpp", "#include \"cifar_mpi/engine/program.hpp\"");
  expect_broken("src/engine/a.cpp", "#include \"comm/ring.hpp\"");
  expect_broken("include/cifar_mpi/base/a.hpp", "#include \"cifar_mpi/model/layer.hpp\"");
  expect_broken("src/train/a.cpp", "#include \"app/options.hpp\"");
  expect_broken("src/run/a.cpp", "#include \"cifar_mpi/train/session.hpp\"");
  expect_broken("src/step/a.cpp", "#include \"cifar_mpi/selfcheck/self_check.hpp\"");
  expect_kept("src/train/a.cpp", "#include \"cifar_mpi/comm/world.hpp\"");
  expect_kept("src/report/a.cpp", "#include \"watch/rank_watch.hpp\"");
  expect_kept("src/data/a.cpp", "#include \"hdf5/reader.hpp\"");
  expect_kept("src/model/a.cpp", "#include \"model/catalog.hpp\"");
}

TEST(LevelsChecker, SeesBackendsThatKnowEachOther) {
  expect_broken("src/cpu/conv.cpp", "#include \"cifar_mpi/cuda/backend.hpp\"");
  expect_broken("src/cuda/conv.cu", "#include \"cpu/conv.hpp\"");
  expect_kept("src/cuda/conv.cu", "#include \"cuda/conv.cuh\"");
  expect_kept("src/app/a.cpp", "#include \"cifar_mpi/cuda/backend.hpp\"");
}

TEST(LevelsChecker, SeesThirdPartyHeadersInTheWrongModule) {
  expect_broken("src/train/a.cpp", "#include <mpi.h>");
  expect_broken("src/data/a.cpp", "#include <hdf5.h>");
  expect_broken("src/data/a.cpp", "#include <hdf5/serial/hdf5.h>");
  expect_broken("src/data/a.cpp", "#include \"H5Cpp.h\"");
  expect_broken("src/train/a.cpp", "#include <CLI/CLI.hpp>");
  expect_broken("src/engine/a.cpp", "#include <oneapi/dnnl/dnnl.hpp>");
  expect_broken("src/cpu/a.cpp", "#include <cuda_runtime.h>");
  expect_broken("src/comm/a.cpp", "#include <nccl.h>");
  expect_broken("src/cpu/a.cpp", "#include <cudnn.h>");
  expect_broken("src/train/a.cpp", "#include <cublasLt.h>");
  expect_broken("src/data/dataset.cpp", "#include <png.h>");
  expect_broken("src/data/picture.cpp", "#include <jpeglib.h>");
  expect_broken("src/data/dataset.cpp", "#include <nlohmann/json.hpp>");
  expect_kept("src/comm/a.cpp", "#include <mpi.h>");
  expect_kept("src/hdf5/a.cpp", "#include <hdf5.h>");
  expect_kept("src/app/a.cpp", "#include <CLI/CLI.hpp>");
  expect_kept("src/cpu/a.cpp", "#include <oneapi/dnnl/dnnl.hpp>");
  expect_kept("src/cuda/a.cu", "#include <nccl.h>");
  expect_kept("src/data/png.cpp", "#include <png.h>");
  expect_kept("src/data/jpeg.cpp", "#include <jpeglib.h>");
  expect_kept("src/comm/a.cpp", "#include <sched.h>");
}

TEST(LevelsChecker, SeesAnythingButStandardHeadersInPublicOnes) {
  expect_broken("include/cifar_mpi/comm/a.hpp", "#include <mpi.h>");
  expect_broken("include/cifar_mpi/cuda/a.hpp", "#include <cuda_runtime.h>");
  expect_broken("include/cifar_mpi/base/a.hpp", "#include <unistd.h>");
  expect_broken("include/cifar_mpi/data/a.hpp", "#include \"hdf5/reader.hpp\"");
  expect_broken("include/cifar_mpi/model/a.hpp", "#include \"model/catalog.hpp\"");
  expect_kept("include/cifar_mpi/base/a.hpp", "#include <cstdint>");
}

TEST(LevelsChecker, SeesFilesAndIncludesWithoutAModule) {
  expect_broken("src/helpers/a.cpp", "");
  expect_broken("src/a.cpp", "");
  expect_broken("src/model/a.cpp", "#include \"catalog.hpp\"");
}

TEST(LevelsChecker, ReadsIndentedLinesAndSkipsComments) {
  expect_broken("src/model/a.cpp", "int a;\n  #  include <mpi.h>  // why\n");
  expect_kept("src/model/a.cpp", "// #include <mpi.h>\n");
}

}  // namespace
}  // namespace cifar_mpi
