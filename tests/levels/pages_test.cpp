#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

/// Reads pages, comments and messages as a stranger would: short cells, plain English, links that lead
/// somewhere.
namespace cifar_mpi {
namespace {

namespace fs = std::filesystem;

/// The pages whose phrases and links are checked.
constexpr std::string_view kPages[] = {
    "README.md",         "jobs/README.md",       "src/README.md",          "src/comm/README.md",
    "env/README.md",     "src/run/inference.md",

    "src/cpu/README.md", "src/cuda/README.md",   "src/forecast/README.md", "src/report/README.md",
    "src/run/README.md", "tests/MEASURED.md",    "tests/README.md",        "tools/README.md"};
/// The pages whose table cells must be short, too.
constexpr std::string_view kPagesOfShortCells[] = {"README.md", "tests/MEASURED.md"};
constexpr std::size_t kMostReadmeLines = 130;
constexpr int kMostCellWords = 12;

/// Words and phrases that no page, comment or message may hold, in lower case.
constexpr std::string_view kPhrases[] = {"absorb",
                                         "and go on",
                                         "as if nothing had happened",
                                         "asks for no password",
                                         "asks nothing",
                                         "behind",
                                         "cannot end in order",
                                         "comes to",
                                         "does not get on",
                                         "end of time",
                                         "finds that",
                                         "floor",
                                         "floors",
                                         "get on",
                                         "gets on",
                                         "goes on from there",
                                         "hardly learns",
                                         "heed",
                                         "heeded",
                                         "heeds",
                                         "how a weight follows",
                                         "is told",
                                         "leave with",
                                         "leaves with",
                                         "leaving hard",
                                         "likewise",
                                         "nobody",
                                         "not, linearly",
                                         "nothing of it",
                                         "of waiting were left",
                                         "of which",
                                         "others are waited for",
                                         "parts of the array come in",
                                         "print and leave",
                                         "prints and leaves",
                                         "proved itself",
                                         "repeats nothing",
                                         "room",
                                         "rooms",
                                         "runs its tower",
                                         "the house",
                                         "today's program",
                                         "told",
                                         "what gradients look like",
                                         "what it takes and why",
                                         "would come again"};

/// Folders whose comments and messages must not hold these phrases either. This test holds all of them.
constexpr std::string_view kFolders[] = {"env", "include/cifar_mpi", "jobs", "src", "tests", "tools"};
constexpr std::string_view kUnread[] = {"tests/levels/"};

/// A use of a phrase that is plain English.
struct Exception {
  std::string_view file;
  std::string_view phrase;
};
constexpr Exception kExceptions[] = {{"src/app/bench_main.cpp", "floor"},
                                     {"src/run/README.md", "behind"},
                                     {"tests/tools/compare_pytorch_test.sh", "floor"},
                                     {"tests/tools/gpu_check_test.sh", "floor"},
                                     {"tests/cuda/runs/ends_test.cpp", "floor"},
                                     {"tools/compare_pytorch", "floor"}};
constexpr std::size_t kMostExceptions = 20;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string page(std::string_view name) { return read(fs::path(CIFAR_MPI_SOURCE_ROOT) / name); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The lines inside (`in_code`) or outside fenced code.
std::vector<std::string> lines_of(const std::string& text, bool in_code) {
  std::vector<std::string> found;
  bool code = false;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("```")) {
      code = !code;
    } else if (code == in_code) {
      found.push_back(line);
    }
  }
  return found;
}

int count_words(const std::string& text) {
  std::istringstream in(text);
  return static_cast<int>(std::distance(std::istream_iterator<std::string>(in), {}));
}

/// The cells of all tables that have more words than `most`.
std::vector<std::string> long_cells(const std::string& text, int most = kMostCellWords) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(text, false)) {
    if (!line.starts_with("|")) continue;
    std::string cell;
    for (std::size_t i = 1; i < line.size(); ++i) {
      if (line[i] != '|' || line[i - 1] == '\\') {
        cell += line[i];
        continue;
      }
      if (count_words(cell) > most) found.push_back(cell);
      cell.clear();
    }
  }
  return found;
}

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// `text` in lower case, with one blank for each stretch of white space, so that a phrase may wrap.
std::string flattened(const std::string& text) {
  std::istringstream in(text);
  std::string flat = " ";
  for (std::string word; in >> word;) flat += word + ' ';
  std::transform(flat.begin(), flat.end(), flat.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return flat;
}

/// Whether `c` next to a phrase makes it a part of a longer word or of a path, such as tests/room.
bool continues_word_or_path(char c) { return is_word_character(c) || c == '/'; }

std::vector<std::string> stumbling_phrases(const std::string& text,
                                           std::span<const std::string_view> phrases = kPhrases) {
  const std::string flat = flattened(text);
  std::vector<std::string> found;
  for (const std::string_view phrase : phrases) {
    for (auto at = flat.find(phrase); at != flat.npos; at = flat.find(phrase, at + 1)) {
      const char next = flat[at + phrase.size()];
      if (continues_word_or_path(flat[at - 1]) || continues_word_or_path(next) || next == '(') continue;
      found.push_back("..." + flat.substr(at - std::min<std::size_t>(at, 30), phrase.size() + 60));
    }
  }
  return found;
}

/// The comments and the strings of C++, without what marks them; a comment or a string may wrap.
std::string words_of_cpp(const std::string& text) {
  std::string words;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool comment = text.compare(i, 2, "//") == 0;
    if (text.compare(i, 3, "'\"'") == 0) i += 2;
    if (!comment && text[i] != '"') continue;
    const char last = comment ? '\n' : '"';
    if (!comment) ++i;
    while (comment && (text[i] == '/' || text[i] == '<')) ++i;
    for (; i < text.size() && text[i] != last; ++i) {
      if (!comment && text[i] == '\\') ++i;
      words += text[i];
    }
    if (comment) words += ' ';
  }
  return words;
}

/// The phrases in a page, or in the comments and messages of a file (path from the source root), the exceptions
/// left out.
std::vector<std::string> stumbling_words(const std::string& file, const std::string& text) {
  std::vector<std::string_view> phrases(std::begin(kPhrases), std::end(kPhrases));
  std::erase_if(phrases, [&](std::string_view phrase) {
    return std::any_of(std::begin(kExceptions), std::end(kExceptions),
                       [&](const Exception& e) { return e.file == file && e.phrase == phrase; });
  });
  constexpr std::string_view kSuffixes[] = {"pp", ".cu", ".cuh", ".in", ".js"};
  const bool cpp = std::any_of(std::begin(kSuffixes), std::end(kSuffixes),
                               [&](std::string_view suffix) { return file.ends_with(suffix); });
  return stumbling_phrases(cpp ? words_of_cpp(text) : text, phrases);
}

bool is_unread(std::string_view file) {
  return std::any_of(std::begin(kUnread), std::end(kUnread),
                     [&](std::string_view folder) { return file.starts_with(folder); });
}

/// What `#NAME` calls a heading.
std::string anchor_of(std::string_view heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ') anchor += '-';
    if (is_word_character(c) || c == '-' || byte >= 0x80) anchor += static_cast<char>(std::tolower(byte));
  }
  return anchor;
}

bool has_heading(const std::string& text, const std::string& anchor) {
  const std::vector<std::string> lines = lines_of(text, false);
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    const auto start = line.find_first_not_of('#');
    return start != line.npos && start > 0 && line[start] == ' ' &&
           anchor_of(line.substr(start + 1)) == anchor;
  });
}

/// The targets of links in `text`, a page in `folder`, that lead to no file or heading.
std::vector<std::string> broken_links(const std::string& text, const fs::path& page_path) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(text, false)) {
    for (auto at = line.find("]("); at != line.npos; at = line.find("](", at + 1)) {
      const std::string target = line.substr(at + 2, line.find(')', at) - at - 2);
      if (target.starts_with("http")) continue;
      const auto hash = std::min(target.find('#'), target.size());
      const fs::path file = hash == 0 ? page_path : page_path.parent_path() / target.substr(0, hash);
      if (!fs::exists(file) || (hash < target.size() && !has_heading(read(file), target.substr(hash + 1)))) {
        found.push_back(target);
      }
    }
  }
  return found;
}

TEST(Pages, HaveAReadmeThatFitsOnThreeScreens) {
  const std::size_t lines = lines_of(page("README.md")).size();
  EXPECT_GT(lines, 50u);
  EXPECT_LE(lines, kMostReadmeLines);
}

TEST(Pages, HaveShortTableCells) {
  for (const std::string_view name : kPagesOfShortCells) {
    for (const std::string& cell : long_cells(page(name))) ADD_FAILURE() << name << ": long cell:" << cell;
  }
}

TEST(Pages, HoldNoPhraseThatReadersStumbleOver) {
  for (const std::string_view name : kPages) {
    for (const std::string& phrase : stumbling_words(std::string(name), page(name)))
      ADD_FAILURE() << name << ": " << phrase;
  }
}

TEST(Pages, LeaveNoPhraseThatReadersStumbleOverInCommentsAndMessages) {
  std::size_t files = 0;
  for (const std::string_view folder : kFolders) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(CIFAR_MPI_SOURCE_ROOT) / folder)) {
      const std::string file = entry.path().lexically_relative(CIFAR_MPI_SOURCE_ROOT).generic_string();
      // A page has its own test, a picture shows a run, and the recipe has the help texts of src/app.
      if (!entry.is_regular_file() || is_unread(file) || file.ends_with(".md") || file.ends_with(".svg") ||
          file.ends_with("tutorial.toml"))
        continue;
      ++files;
      for (const std::string& phrase : stumbling_words(file, read(entry.path())))
        ADD_FAILURE() << file << ": " << phrase;
    }
  }
  EXPECT_GT(files, 600u);
  EXPECT_LE(std::size(kExceptions), kMostExceptions);
}

TEST(Pages, LinkToFilesAndHeadingsThatExist) {
  for (const std::string_view name : kPages) {
    const fs::path path = fs::path(CIFAR_MPI_SOURCE_ROOT) / name;
    for (const std::string& target : broken_links(read(path), path)) ADD_FAILURE() << name << ": " << target;
  }
}

TEST(Pages, NameTheVersionThatCMakeHas) {
  const std::string cmake = page("CMakeLists.txt");
  const auto at = cmake.find("project(cifar_mpi VERSION ");
  ASSERT_NE(at, cmake.npos);
  const std::string version = cmake.substr(at + 26, cmake.find(' ', at + 26) - at - 26);
  EXPECT_NE(page("README.md").find("Version " + version + ","), std::string::npos) << version;
  EXPECT_NE(page("CITATION.cff").find("\nversion: " + version + "\n"), std::string::npos) << version;
}

TEST(Pages, GiveEachTrainingCommandOfTheReadmeItsOwnRunDirectory) {
  std::set<std::string> directories;
  for (const std::string& line : lines_of(page("README.md"), true)) {
    if (line.find("/cifar_mpi_train ") == line.npos) continue;
    const auto at = line.find("--run-dir ");
    ASSERT_NE(at, line.npos) << line;
    const std::string directory = line.substr(at + 10, line.find(' ', at + 10) - at - 10);
    EXPECT_TRUE(directories.insert(directory).second) << line;
  }
  EXPECT_GE(directories.size(), 5u);
}

TEST(PagesChecker, CountsTheWordsOfEachCell) {
  EXPECT_EQ(long_cells("| a b c | d |\n", 2), std::vector<std::string>{" a b c "});
  EXPECT_TRUE(long_cells("| a b | `c\\|d` e |\n", 2).empty());
  EXPECT_TRUE(long_cells("```\n| a b c |\n```\na b c | d e f\n", 2).empty());
}

TEST(PagesChecker, SeesPhrasesThatWrapAndWholeWordsOnly) {
  EXPECT_EQ(stumbling_phrases("It prints\nand leaves.").size(), 1u);
  EXPECT_EQ(stumbling_phrases("Likewise").size(), 1u);
  EXPECT_TRUE(stumbling_phrases("mushroom, becomes toast, floor(x)").empty());
}

TEST(PagesChecker, AllowsPhrasesInPaths) {
  EXPECT_TRUE(stumbling_phrases("`tests/room` and `floors/page_test.cpp`").empty());
  EXPECT_EQ(stumbling_phrases("`floors`").size(), 1u);
}

TEST(PagesChecker, ReadsCommentsAndStringsAndNoOtherCode) {
  EXPECT_EQ(stumbling_words("a.cpp", "int a;  // is\n        // told\n").size(), 2u);
  EXPECT_EQ(stumbling_words("a.hpp", "int a;  ///< Nobody\n").size(), 1u);
  EXPECT_EQ(stumbling_words("a.cpp", "f('\"', \"a\\\"b prints \"\n  \"and leaves\");").size(), 1u);
  EXPECT_TRUE(stumbling_words("a.cpp", "const int room = std::floor(behind);").empty());
  EXPECT_TRUE(stumbling_words(std::string(kExceptions[0].file), std::string(kExceptions[0].phrase)).empty());
}

TEST(PagesChecker, FollowsLinksToFilesAndHeadings) {
  const fs::path here = fs::path(CIFAR_MPI_SOURCE_ROOT) / "README.md";
  EXPECT_TRUE(broken_links("[a](src/README.md) [b](https://example.org) [c](LICENSE)", here).empty());
  EXPECT_TRUE(broken_links("# My `own` part\n[a](README.md#quick-start)", here).empty());
  EXPECT_EQ(broken_links("[a](src/NONE.md) [b](src/README.md#none)", here).size(), 2u);
  EXPECT_TRUE(has_heading("## My `own` part, 2nd\n", "my-own-part-2nd"));
  EXPECT_FALSE(has_heading("```\n## code\n```\n", "code"));
}

}  // namespace
}  // namespace cifar_mpi
