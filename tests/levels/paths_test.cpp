#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

/// Reads the source, and fails if a file that is not listed here opens a path, or builds one from a run
/// directory's path: entries of a run directory are reached through the opened folder (base/directory.hpp).
namespace cifar_mpi {
namespace {

namespace fs = std::filesystem;

/// Functions that open, inspect or change what a path names.
constexpr std::string_view kByPath[] = {
    "::open(",      "fopen(",    "std::ifstream", "std::ofstream",     "std::fstream", "filesystem::",
    "AT_FDCWD",     "::stat(",   "::lstat(",      "::unlink(",         "::rename(",    "std::rename(",
    "std::remove(", "::link(",   "::symlink(",    "::mkdir(",          "opendir(",     "::truncate(",
    "::readlink(",  "::access(", "::chmod(",      "directory_iterator"};

/// Files that may use them, and why.
struct Allowed {
  std::string_view file;
  std::string_view why;
};
constexpr Allowed kAllowed[] = {{"src/base/directory.cpp", "the owner of all that is below"},
                                {"src/base/terminal.cpp", "/proc"},
                                {"src/hdf5/reader.cpp", "/proc/self/fd"},
                                {"src/comm/", "memory that ranks share, and /proc"},
                                {"src/cpu/backend.cpp", "/proc/cpuinfo"},
                                {"src/cuda/device.cpp", "the driver's version"},
                                {"src/data/", "data sets, which the user names"},
                                {"src/run/run_lock.cpp", "/proc/self/ns"},
                                {"src/run/init_from.cpp", "the name without its folders; nothing is opened"},
                                {"src/page/run.cpp", "the ends of paths, to name runs by; nothing is opened"},
                                {"src/bench/ways_benchmark.cpp", "/proc/net/dev"},
                                {"src/forecast/links.cpp", "the folder of a study, which the user names"},
                                {"src/app/", "what the user names"}};

/// Texts for people; they open nothing.
constexpr Allowed kForPeople[] = {{"src/run/run_directory.cpp", "\"/checkpoints/"},
                                  {"src/run/self_check_record.cpp", "\"/self_check"}};

/// Functions that take a name in an opened folder; all except those of the modules base, hdf5 and data.
constexpr std::string_view kTakesEntry[] = {"read_checkpoint(",
                                            "write_checkpoint(",
                                            "recorded_test_accuracy(",
                                            "read_evaluation(",
                                            "write_evaluation(",
                                            "read_timeline(",
                                            "write_timeline(",
                                            "read_metrics(",
                                            "read_summaries(",
                                            "write_atomically(",
                                            "create_atomically(",
                                            "link_atomically(",
                                            "read_small_file(",
                                            "MetricsFile(",
                                            "TimelineFile>(",
                                            "TraceFile(",
                                            "TensorBoard(",
                                            "EventFile(",
                                            "SummaryHistory::read(",
                                            "InputFile(",
                                            "remove_file(",
                                            "open_file(",
                                            "Directory(",
                                            "Directory::make("};

/// Where run directories are handled.
constexpr std::string_view kRunModules[] = {"src/run/",        "src/report/", "src/page/",      "src/config/",
                                            "src/evaluation/", "src/step/",   "src/selfcheck/", "src/train/",
                                            "src/bench/",      "src/app/"};

/// Parts of an argument that mark it as a path.
constexpr std::string_view kPathLike[] = {"\"/", "path()", "_path", "run_dir +", "concat("};

std::string without_comments(const std::string& text) {
  std::string kept;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text.compare(at, 2, "//") == 0 && (at == 0 || text[at - 1] != ':'))
      at = std::min(text.find('\n', at), text.size());
    if (at < text.size()) kept += text[at];
  }
  return kept;
}

bool is_word(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// The first argument of the call whose parenthesis ends before `at`.
std::string first_argument(const std::string& text, std::size_t at) {
  int depth = 0;
  const std::size_t begin = at;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '(' || c == '{' || c == '[') ++depth;
    if ((c == ')' || c == '}' || c == ']') && depth-- == 0) break;
    if (c == ',' && depth == 0) break;
  }
  return text.substr(begin, at - begin);
}

/// Whether the text before `at` ends with the path of a run directory and a sign that joins texts.
bool continues_run_directory(const std::string& text, std::size_t at) {
  const std::size_t sign = text.find_last_not_of(" \n", at - 1);
  if (sign == std::string::npos || (text[sign] != '+' && text[sign] != ',')) return false;
  const std::size_t end = text.find_last_not_of(" \n", sign - 1);
  for (const std::string_view owner :
       {"run_dir", "run_dir_", ".dir", "->dir", "directory().path()", "run.path()", "run_.path()",
        "run->path()", "directory.path()", "directory_.path()"}) {
    if (end != std::string::npos && end + 1 >= owner.size() &&
        text.compare(end + 1 - owner.size(), owner.size(), owner) == 0)
      return true;
  }
  return false;
}

/// One sentence for each place in `file` (path from the source root) that bypasses opened folders.
std::vector<std::string> path_violations(const std::string& file, const std::string& source) {
  std::vector<std::string> found;
  const std::string text = without_comments(source);
  const auto* const allowed =
      std::find_if(std::begin(kAllowed), std::end(kAllowed),
                   [&](const Allowed& entry) { return file.starts_with(entry.file); });
  for (const std::string_view word : kByPath) {
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) {
      const bool include =
          text.rfind("#include", at) != std::string::npos && text.find('\n', text.rfind("#include", at)) > at;
      const bool of_a_class = at > 0 && word.starts_with("::") && is_word(text[at - 1]);
      if (allowed == std::end(kAllowed) && !include && !of_a_class)
        found.push_back(file + ": " + std::string(word) +
                        " belongs to a path; give the file a line in this test");
    }
  }
  for (std::size_t at = 0; (at = text.find("\"/", at)) != std::string::npos; ++at) {
    const std::string literal = text.substr(at, text.find('"', at + 1) - at);
    const bool for_people =
        literal.find('*') != std::string::npos ||
        std::any_of(std::begin(kForPeople), std::end(kForPeople),
                    [&](const Allowed& entry) { return file == entry.file && literal == entry.why; });
    if (at > 0 && !for_people && continues_run_directory(text, at))
      found.push_back(file + ": a path in a run directory is put together with " + literal);
  }
  const bool of_the_run = std::any_of(std::begin(kRunModules), std::end(kRunModules),
                                      [&](std::string_view module) { return file.starts_with(module); });
  for (const std::string_view call : kTakesEntry) {
    for (std::size_t at = 0; of_the_run && (at = text.find(call, at)) != std::string::npos;) {
      const bool whole = at == 0 || !is_word(text[at - 1]);
      at += call.size();
      const std::string argument = first_argument(text, at);
      const bool entry =
          argument.find(" / ") != std::string::npos || argument.find("\"/proc/") != std::string::npos;
      const bool path = std::any_of(std::begin(kPathLike), std::end(kPathLike), [&](std::string_view part) {
        return argument.find(part) != std::string::npos;
      });
      if (whole && path && !entry)
        found.push_back(file + ": " + std::string(call) + argument +
                        ") is given a path, not a name in an opened folder");
    }
  }
  return found;
}

bool is_code(const fs::path& path) {
  constexpr std::array<std::string_view, 4> endings{".cpp", ".hpp", ".cu", ".cuh"};
  return std::find(endings.begin(), endings.end(), path.extension().string()) != endings.end();
}

TEST(Paths, AreOpenedOnlyWhereTheUserNamesThem) {
  const fs::path root = CIFAR_MPI_SOURCE_ROOT;
  int files = 0;
  for (const char* top : {"include", "src"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file() || !is_code(entry.path())) continue;
      ++files;
      std::ifstream in(entry.path());
      const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
      for (const std::string& violation :
           path_violations(entry.path().lexically_relative(root).generic_string(), text))
        ADD_FAILURE() << violation;
    }
  }
  EXPECT_GT(files, 40) << "found too few files below " << root;
}

TEST(Paths, OfTheTableAreThere) {
  const fs::path root = CIFAR_MPI_SOURCE_ROOT;
  for (const Allowed& entry : kAllowed) EXPECT_TRUE(fs::exists(root / entry.file)) << entry.file;
}

void expect_path_refused(const std::string& file, const std::string& line) {
  EXPECT_EQ(path_violations(file, line).size(), 1u) << file << " may say " << line;
}
void expect_path_allowed(const std::string& file, const std::string& line) {
  EXPECT_TRUE(path_violations(file, line).empty()) << path_violations(file, line).front();
}

TEST(PathsChecker, SeesWhoGoesRoundAnOpenedFolder) {
  expect_path_refused("src/report/a.cpp", "std::ifstream file(name);");
  expect_path_refused("src/run/a.cpp", "std::filesystem::remove(name);");
  expect_path_refused("src/run/a.cpp", "::open(name.c_str(), 0);");
  expect_path_refused("src/train/a.cpp", "use(config.run_dir + \"/exit\");");
  expect_path_refused("src/train/a.cpp", "use(concat(s_.config.run_dir, \"/exit\"));");
  expect_path_refused("src/train/a.cpp", "use(run.path() +\n    \"/exit\");");
  expect_path_refused("src/train/a.cpp", "read_timeline(file.path());");
  expect_path_refused("src/page/a.cpp", "run::read_checkpoint(run.checkpoint_path);");
  expect_path_refused("src/app/a.cpp", "InputFile(run::checkpoint_path(dir, 1));");
  expect_path_allowed("src/run/a.cpp",
                      "#include <filesystem>\n// std::filesystem::remove(run_dir + \"/exit\")\n");
  expect_path_allowed("src/run/a.cpp", "write_atomically(run / \"exit\", text); log(file.path(), \"/\");");
  expect_path_allowed("src/app/a.cpp", "std::filesystem::exists(options.out);");
  expect_path_allowed("src/run/a.cpp", "read_small_file(concat(\"/proc/\", pid));");
}

}  // namespace
}  // namespace cifar_mpi
