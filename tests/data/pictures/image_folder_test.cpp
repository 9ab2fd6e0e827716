#include "cifar_mpi/data/image_folder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "cifar_mpi/base/text.hpp"
#include "support/errors.hpp"
#include "support/pictures.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::data {
namespace {

namespace fs = std::filesystem;
using test::filled, test::png_file;

/// Writes `content` to `name` below `dir`, and the folders on the way.
void put(const TempDir& dir, const std::string& name, const std::string& content = {}) {
  fs::create_directories(fs::path(dir / name).parent_path());
  write_file(dir / name, content);
}

std::vector<std::string> paths_of(const ImageFolder& folder) {
  std::vector<std::string> paths;
  for (const ListedImage& image : folder.images) paths.push_back(image.path);
  return paths;
}

void expect_refused(const std::string& root, const std::vector<std::string>& parts) {
  expect_error(ErrorKind::data, parts, [&] { static_cast<void>(list_image_folder(root)); });
}

TEST(ImageFolder, HasItsClassesInTheOrderOfTheirNames) {
  const TempDir dir;
  for (const char* name : {"b/1.png", "Z/2.PNG", "a b/3.jpg", "\xc3\xa9/4.JPEG", "b/5.jpeg"}) put(dir, name);
  const ImageFolder folder = list_image_folder(dir.path() + "/");
  EXPECT_EQ(folder.classes, (std::vector<std::string>{"Z", "a b", "b", "\xc3\xa9"}));
  ASSERT_EQ(folder.images.size(), 5u);
  for (const ListedImage& image : folder.images)
    EXPECT_EQ(image.path.substr(0, image.path.find('/')), folder.classes[image.label]);
}

TEST(ImageFolder, TakesSubfoldersAndLeavesOutWhatIsNoImage) {
  const TempDir dir;
  for (const char* name : {"a/deep/er/1.png", "b/2.png", "b/.hidden.png", ".git/3.png", "b/.cache/4.png",
                           "b/notes.txt", "labels.csv", "5.png", "a/png"})
    put(dir, name);
  const ImageFolder folder = list_image_folder(dir.path());
  std::vector<std::string> paths = paths_of(folder);
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(paths, (std::vector<std::string>{"a/deep/er/1.png", "b/2.png"}));
  EXPECT_EQ(folder.other_files, 4u);
  EXPECT_EQ(folder.other_file, "5.png");
}

TEST(ImageFolder, LeadsNowhereElseThroughALinkThatCameAfterTheListing) {
  const TempDir dir, elsewhere;
  for (const char* name : {"set/a/deep/1.png", "set/b/2.png"})
    put(dir, name, png_file(8, 8, filled(8, 8, {1, 2, 3})));
  put(elsewhere, "deep/1.png", png_file(8, 8, filled(8, 8, {7, 7, 7})));
  const ImageFolder folder = list_image_folder(dir / "set");
  EXPECT_EQ(read_images(folder, 8, {}).labels.size(), 2u);
  for (const auto& [name, target] : {std::pair{"set/a", ""}, {"set/a/deep", "/deep"}}) {
    fs::rename(dir / name, dir / "aside");
    fs::create_directory_symlink(elsewhere.path() + target, dir / name);
    expect_error(ErrorKind::data, {dir / name, "symbolic link, which is not followed"},
                 [&] { static_cast<void>(read_images(folder, 8, {})); });
    fs::remove(dir / name);
    fs::rename(dir / "aside", dir / name);
  }
}

TEST(ImageFolder, IsRefusedInASentence) {
  const TempDir dir;
  expect_refused(dir / "none", {dir / "none", "No such file"});
  put(dir, "flat/1.png");
  expect_refused(dir / "flat", {dir / "flat", "has 0 folders", "2 to 255"});
  put(dir, "one/a/1.png");
  expect_refused(dir / "one", {"has 1 folder,"});
  expect_refused(dir / "one/a/1.png", {"Not a directory"});
  put(dir, "empty/a/1.png");
  put(dir, "empty/b/text.txt");
  expect_refused(dir / "empty", {dir / "empty/b", "no image (.png, .jpg or .jpeg)"});
  put(dir, "splits/train/a/1.png");
  put(dir, "splits/val/a/1.png");
  expect_refused(dir / "splits", {"'train' and 'val'", "--test-folder"});
  put(dir, "lines/a/1.png");
  put(dir, "lines/b\033[2J/1.png");
  expect_refused(dir / "lines", {"control character"});
  std::string deep = "deep/a/";
  for (int i = 0; i < 5; ++i) deep.append(200, 'x').append("/");
  put(dir, deep + "1.png");
  put(dir, "deep/b/1.png");
  expect_refused(dir / "deep", {"has more than 1000 bytes"});
  for (int i = 0; i < 256; ++i) fs::create_directories(dir / concat("many/", i));
  expect_refused(dir / "many", {"has 256 folders"});
}

TEST(ImageFolder, FollowsNoLinkToAFolder) {
  const TempDir dir;
  for (const char* name : {"set/a/1.png", "set/b/2.png", "other/3.png"}) put(dir, name);
  fs::create_directory_symlink(dir / "other", dir / "set/c");
  expect_refused(dir / "set", {dir / "set/c", "symbolic link to a folder"});
  fs::remove(dir / "set/c");
  fs::create_directory_symlink("..", dir / "set/a/up");  // round in a circle
  expect_refused(dir / "set", {dir / "set/a/up", "symbolic link to a folder"});
  fs::remove(dir / "set/a/up");
  fs::create_directory_symlink(dir / "set", dir / "named");  // by the user, who may
  EXPECT_EQ(list_image_folder(dir / "named").images.size(), 2u);
  fs::create_symlink(dir / "other/3.png", dir / "set/b/4.png");
  const ImageFolder folder = list_image_folder(dir / "set");
  EXPECT_EQ(folder.images.size(), 3u);
  expect_error(ErrorKind::data, {"symbolic link"}, [&] {
    ImageFolder link = folder;
    std::erase_if(link.images, [](const ListedImage& image) { return image.path != "b/4.png"; });
    static_cast<void>(read_images(link, 8, ReadEvents{}));
  });
}

/// Sixty names in three classes.
std::vector<std::string> many_names() {
  std::vector<std::string> names;
  for (int i = 0; i < 60; ++i) names.push_back(concat("class_", i % 3, "/image_", i, ".png"));
  return names;
}

TEST(ImageFolder, IsTheSameInWhateverOrderItWasMade) {
  const TempDir one, other;
  std::vector<std::string> names = many_names();
  for (const std::string& name : names) put(one, name);
  std::reverse(names.begin(), names.end());
  for (const std::string& name : names) put(other, name);
  ImageFolder a = list_image_folder(one.path()), b = list_image_folder(other.path());
  EXPECT_EQ(paths_of(a), paths_of(b));
  std::set<int> first_classes;  // classes are mixed
  for (std::size_t i = 0; i < 20; ++i) first_classes.insert(a.images[i].label);
  EXPECT_EQ(first_classes.size(), 3u);
  EXPECT_EQ(paths_of(split_off(a, 0.3)), paths_of(split_off(b, 0.3)));
  EXPECT_EQ(paths_of(a), paths_of(b));
}

TEST(SplitOff, TakesTheShareAndLeavesTheRest) {
  const TempDir dir;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = concat("class_", i % 2, "/", i, ".png");
    put(dir, name);
  }
  ImageFolder train = list_image_folder(dir.path());
  const ImageFolder all = train, test = split_off(train, 0.1);
  EXPECT_EQ(test.classes, all.classes);
  // Of 1000 fair draws at 0.1 all but 1 in 10^5 lie within 4.5 standard deviations of 9.5.
  EXPECT_NEAR(static_cast<double>(test.images.size()), 100.0, 43.0);
  std::vector<std::string> both = paths_of(test);
  for (const std::string& path : paths_of(train)) both.push_back(path);
  EXPECT_EQ(both, paths_of(all));
}

TEST(SplitOff, IsTheSameOnEveryMachineAndInEveryVersion) {
  const TempDir dir;
  for (const std::string& name : many_names()) put(dir, name);
  ImageFolder folder = list_image_folder(dir.path());
  const std::vector<std::string> taken = paths_of(split_off(folder, 0.05));
  EXPECT_EQ(taken, (std::vector<std::string>{"class_1/image_1.png", "class_1/image_55.png",
                                             "class_2/image_5.png", "class_0/image_21.png"}));
}

TEST(SplitOff, MovesNoImageWhenOthersCome) {
  const TempDir dir;
  for (const std::string& name : many_names()) put(dir, name);
  ImageFolder before = list_image_folder(dir.path());
  const std::vector<std::string> taken = paths_of(split_off(before, 0.2));
  for (int i = 0; i < 100; ++i) put(dir, concat("class_1/new_", i, ".png"));
  ImageFolder after = list_image_folder(dir.path());
  std::vector<std::string> taken_again = paths_of(split_off(after, 0.2));
  std::erase_if(taken_again, [](const std::string& path) { return path.find("new_") != std::string::npos; });
  EXPECT_EQ(taken_again, taken);
}

TEST(SplitOff, LeavesEachClassInBothSplits) {
  const TempDir dir;
  for (const char* name : {"a/1.png", "a/2.png", "b/1.png", "b/2.png", "b/3.png", "c/1.png"}) put(dir, name);
  for (const double share : {0.001, 0.999}) {
    ImageFolder folder = list_image_folder(dir.path());
    std::vector<int> test(3), train(3);
    for (const ListedImage& image : split_off(folder, share).images) ++test[image.label];
    for (const ListedImage& image : folder.images) ++train[image.label];
    EXPECT_EQ(test, (share < 0.5 ? std::vector<int>{1, 1, 0} : std::vector<int>{1, 2, 0}));
    EXPECT_EQ(train, (share < 0.5 ? std::vector<int>{1, 2, 1} : std::vector<int>{1, 1, 1}));
  }
}

TEST(SplitOff, TakesTheShareOfEachClassIfItStratifies) {
  const TempDir dir;
  for (int i = 0; i < 69; ++i) put(dir, concat(i < 20 ? "a/" : i < 64 ? "b/" : "c/", i, ".png"));
  ImageFolder folder = list_image_folder(dir.path());
  const ImageFolder all = folder, test = split_off(folder, 0.15, true);
  std::vector<std::vector<std::uint64_t>> taken(3), left(3);
  for (const ListedImage& image : test.images) taken[image.label].push_back(image.order);
  for (const ListedImage& image : folder.images) left[image.label].push_back(image.order);
  EXPECT_EQ(test.images.size() + folder.images.size(), all.images.size());
  const std::vector<std::size_t> wanted{3, 7, 1};  // of 3, 6.6 and 0.75
  for (std::size_t label = 0; label < 3; ++label) {
    EXPECT_EQ(taken[label].size(), wanted[label]);
    EXPECT_LT(std::ranges::max(taken[label]), std::ranges::min(left[label])) << "not the first by the hash";
  }
}

TEST(SplitOff, RefusesClassesOfOneImage) {
  const TempDir dir;
  for (const char* name : {"a/1.png", "b/2.png"}) put(dir, name);
  ImageFolder folder = list_image_folder(dir.path());
  expect_error(ErrorKind::data, {"has only one image", "--test-folder"},
               [&] { static_cast<void>(split_off(folder, 0.5)); });
}

TEST(TestFolder, NeedsTheSameClasses) {
  const TempDir dir;
  for (const char* name : {"one/a/1.png", "one/b/2.png", "two/a/1.png", "two/b/2.png", "two/c/3.png",
                           "three/b/1.png", "three/c/2.png"})
    put(dir, name);
  const ImageFolder one = list_image_folder(dir / "one"), two = list_image_folder(dir / "two"),
                    three = list_image_folder(dir / "three");
  require_same_classes(one, one);
  const auto expect_lacks = [](const ImageFolder& a, const ImageFolder& b, const std::string& has,
                               const std::string& name, const std::string& lacks) {
    expect_error(ErrorKind::data, {concat("'", has, "' has a class '", name, "', but '", lacks, "'")},
                 [&] { require_same_classes(a, b); });
  };
  expect_lacks(one, two, two.root, "c", one.root);
  expect_lacks(two, one, two.root, "c", one.root);
  expect_lacks(two, three, two.root, "a", three.root);
  expect_lacks(three, two, two.root, "a", three.root);
}

TEST(ReadImages, GivesEachImageItsLabelInTheOrderOfTheList) {
  const TempDir dir;
  for (int i = 0; i < 12; ++i) {
    const auto value = static_cast<std::uint8_t>(20 * i);
    put(dir, concat("class_", i % 3, "/", i, ".png"),
        png_file(10 + i, 9, filled(10 + i, 9, {value, 7, static_cast<std::uint8_t>(i % 3)})));
  }
  const ImageFolder folder = list_image_folder(dir.path());
  std::vector<std::uint64_t> told;
  const Samples samples = read_images(folder, 8, {[&](std::uint64_t done) { told.push_back(done); }, {}});
  ASSERT_EQ(samples.labels.size(), 12u);
  ASSERT_EQ(samples.images.size(), 12u * 8 * 8 * 3);
  for (std::size_t i = 0; i < 12; ++i) {
    const std::string name = fs::path(folder.images[i].path).stem().string();
    const std::uint8_t* const image = samples.images.data() + i * 8 * 8 * 3;
    EXPECT_EQ(image[0], 20 * std::stoi(name));
    EXPECT_EQ(image[8 * 8 * 3 - 1], samples.labels[i]);
    EXPECT_EQ(samples.files[i], folder.images[i].path);
    EXPECT_EQ(told[i], i + 1);
  }
}

TEST(ReadImages, RefusesOrLeavesOutWhatCannotBeRead) {
  const TempDir dir;
  const std::string good = png_file(9, 9, filled(9, 9, {1, 2, 3}));
  for (int i = 0; i < 6; ++i) put(dir, concat("class_", i % 2, "/", i, ".png"), i == 3 ? "no picture" : good);
  ImageFolder folder = list_image_folder(dir.path());
  expect_error(ErrorKind::data, {dir / "class_1/3.png", "--skip-unreadable"},
               [&] { static_cast<void>(read_images(folder, 8, {})); });
  std::vector<std::string> said;
  ReadEvents events{{}, [&](const std::string& sentence) { said.push_back(sentence); }};
  const Samples samples = read_images(folder, 8, events);
  EXPECT_EQ(samples.labels.size(), 5u);
  ASSERT_EQ(samples.files.size(), 5u);
  EXPECT_EQ(std::count(samples.files.begin(), samples.files.end(), "class_1/3.png"), 0);
  EXPECT_EQ(samples.images.size(), 5u * 8 * 8 * 3);
  EXPECT_EQ(std::count(samples.labels.begin(), samples.labels.end(), 1), 2);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find(dir / "class_1/3.png"), std::string::npos) << said[0];
  EXPECT_NO_THROW(require_read_classes(folder, samples.labels));
  for (const char* name : {"class_1/1.png", "class_1/5.png"}) put(dir, name, good.substr(0, 40));
  const Samples rest = read_images(folder, 8, events);
  expect_error(ErrorKind::data, {"no image of the class 'class_1'", "can be read"},
               [&] { require_read_classes(folder, rest.labels); });
}

}  // namespace
}  // namespace cifar_mpi::data
