#include "cifar_mpi/data/dataset.hpp"

#include <algorithm>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"

namespace cifar_mpi::data {
namespace {

constexpr std::int64_t kFormatVersion = 1;
constexpr int kMaxClasses = 255;  // label 255 is padding
constexpr int kMaxExtent = 1 << 14;
constexpr std::size_t kMaxName = 255;  // bytes

std::string group_of(Split split) { return split == Split::train ? "/train" : "/test"; }

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw Error(ErrorKind::data, "'", path, "' is not a usable dataset: ", problem,
              "; write it again with cifar_mpi_pack");
}

/// Names are written into logs and, a line each, into checkpoints.
bool has_control_character(const std::string& name) {
  return std::ranges::any_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7F; });
}

/// The problem of a dataset to be read or written; empty if there is none.
std::string problem_of(const DatasetInfo& info) {
  if (info.label_names.empty()) return "/label_names is empty, expected one name per class";
  if (info.label_names.size() > kMaxClasses) {
    return concat("/label_names has ", info.label_names.size(), " classes, expected at most ", kMaxClasses,
                  " (label 255 is reserved for padding)");
  }
  for (std::size_t c = 0; c < info.label_names.size(); ++c) {
    if (has_control_character(info.label_names[c]))
      return concat("the name of class ", c, " in /label_names has a control character");
    if (info.label_names[c].size() > kMaxName)
      return concat("the name of class ", c, " in /label_names has more than ", kMaxName, " bytes");
  }
  if (info.image.channels < 1 || info.image.channels > kMostChannels) {
    return concat("/train/images has ", info.image.channels, " channels, expected 1 to ", kMostChannels);
  }
  if (std::min(info.image.height, info.image.width) < 1 ||
      std::max(info.image.height, info.image.width) > kMaxExtent) {
    return concat("/train/images has images of ", to_string(info.image), ", expected 1 to ", kMaxExtent,
                  " rows and columns");
  }
  for (const Split split : {Split::train, Split::test}) {
    if (info.count(split) == 0) return concat(group_of(split), "/images has no images");
  }
  return {};
}

/// The extents of a data set that must be there, as uint8 with `rank` dimensions.
hdf5::Dims checked_dims(const hdf5::Reader& file, const std::string& object, std::size_t rank) {
  if (!file.has(object)) fail(file.path(), concat("data set ", object, " is missing"));
  if (file.is_group(object)) fail(file.path(), concat(object, " is a group, expected a data set"));
  if (const hdf5::Type type = file.type(object); type != hdf5::Type::uint8) {
    fail(file.path(), concat(object, " holds ", to_string(type), ", expected uint8"));
  }
  const hdf5::Dims dims = file.dims(object);
  if (dims.size() != rank) {
    fail(file.path(), concat(object, " has dims ", hdf5::to_string(dims), ", expected ",
                             rank == 4 ? "[sample, height, width, channel]" : "[sample]"));
  }
  return dims;
}

/// Checks one split and returns the dims of its images.
hdf5::Dims check_split(const hdf5::Reader& file, Split split) {
  const hdf5::Dims images = checked_dims(file, group_of(split) + "/images", 4);
  const hdf5::Dims labels = checked_dims(file, group_of(split) + "/labels", 1);
  if (images[0] != labels[0]) {
    fail(file.path(), concat(group_of(split), "/images has ", images[0], " images, but ", group_of(split),
                             "/labels has ", labels[0], " labels"));
  }
  return images;
}

void check_format(const hdf5::Reader& file) {
  if (!file.has_format(kDatasetFormat))
    fail(file.path(),
         concat("it is an HDF5 file, but its root attribute 'format' is not \"", kDatasetFormat, "\""));
  const auto version = file.attribute<std::int64_t>("/", "format_version");
  if (version != kFormatVersion) {
    fail(file.path(),
         concat("its format version is ", version, ", this program reads version ", kFormatVersion));
  }
}

std::vector<std::string> read_label_names(const hdf5::Reader& file) {
  // problem_of reports a few names too many; a list of millions is not read at all.
  constexpr std::uint64_t kMost = 1000;
  return file.read_strings("/label_names", kMost);
}

DatasetInfo read_info(const hdf5::Reader& file) {
  check_format(file);
  if (!file.has("/label_names")) fail(file.path(), "data set /label_names is missing");
  const hdf5::Dims train = check_split(file, Split::train);
  const hdf5::Dims test = check_split(file, Split::test);
  if (!std::equal(train.begin() + 1, train.end(), test.begin() + 1)) {
    fail(file.path(), concat("/train/images has dims ", hdf5::to_string(train), ", but /test/images has ",
                             hdf5::to_string(test)));
  }
  const auto extent = [&](std::size_t i) {
    return static_cast<int>(std::min<std::uint64_t>(train[i], kMaxExtent + 1));
  };
  DatasetInfo info;
  info.image = {extent(1), extent(2), extent(3)};
  info.label_names = read_label_names(file);
  info.source = file.has_attribute("/", "source") ? file.attribute<std::string>("/", "source") : "unknown";
  info.train_count = train[0];
  info.test_count = test[0];
  if (const std::string problem = problem_of(info); !problem.empty()) fail(file.path(), problem);
  return info;
}

hdf5::Reader open_reader(const std::string& path) {
  try {
    return hdf5::Reader(path, ErrorKind::data);
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(), "; write a dataset with cifar_mpi_pack, or name another file");
  }
}

/// Index of the first label that is not below `classes`, or the number of labels.
std::size_t first_bad_label(const std::vector<std::uint8_t>& labels, int classes) {
  const auto bad = std::ranges::find_if(labels, [&](std::uint8_t label) { return label >= classes; });
  return static_cast<std::size_t>(bad - labels.begin());
}

void write_split(hdf5::Writer& file, Split split, const DatasetInfo& info, const Samples& samples) {
  const std::string images = group_of(split) + "/images";
  const std::string labels = group_of(split) + "/labels";
  file.write(images,
             {samples.labels.size(), static_cast<std::uint64_t>(info.image.height),
              static_cast<std::uint64_t>(info.image.width), static_cast<std::uint64_t>(info.image.channels)},
             samples.images);
  file.attribute(images, "dims", "[sample, height, width, channel]");
  file.attribute(images, "content", "pixel values 0 to 255 as in the source, rows from top to bottom");
  file.write(labels, {samples.labels.size()}, samples.labels);
  file.attribute(labels, "dims", "[sample]");
  file.attribute(labels, "content", "class of each image, an index into /label_names");
  if (samples.files.empty()) return;
  const std::string files = group_of(split) + "/files";
  file.write_strings(files, samples.files);
  file.attribute(files, "dims", "[sample]");
  file.attribute(files, "content", "file of each image, a path below the folder that was packed");
}

void check_samples(const std::string& path, Split split, const DatasetInfo& info, const Samples& samples) {
  const std::size_t labels = samples.labels.size();
  if (samples.images.size() != labels * static_cast<std::size_t>(info.image.count())) {
    throw Error(ErrorKind::data, "cannot write '", path, "': ", labels, " labels of ", group_of(split),
                " come with ", samples.images.size(), " image bytes, expected ", info.image.count(),
                " per label");
  }
  if (!samples.files.empty() && samples.files.size() != labels) {
    throw Error(ErrorKind::data, "cannot write '", path, "': ", labels, " labels of ", group_of(split),
                " come with ", samples.files.size(), " names of files");
  }
  const std::size_t bad = first_bad_label(samples.labels, info.classes());
  if (bad != labels) {
    throw Error(ErrorKind::data, "cannot write '", path, "': label ", bad, " of ", group_of(split), " is ",
                int{samples.labels[bad]}, ", expected below ", info.classes());
  }
}

}  // namespace

struct DatasetFile::Open {
  hdf5::Reader reader;
};

DatasetFile::DatasetFile(const std::string& path)
    : path_(path), open_(std::make_unique<Open>(Open{open_reader(path)})) {
  info_ = read_info(open_->reader);
}

DatasetFile::~DatasetFile() = default;

Samples DatasetFile::read(Split split, Shard part) const {
  Samples samples;
  samples.images.resize(part.count * static_cast<std::size_t>(info_.image.count()));
  open_->reader.read_rows(group_of(split) + "/images", part.first, part.count, std::span(samples.images));
  samples.labels = read_labels(split, part);
  return samples;
}

std::vector<std::uint8_t> DatasetFile::read_labels(Split split) const {
  return read_labels(split, {0, info_.count(split)});
}

std::vector<std::string> DatasetFile::read_files(Split split) const {
  const std::string object = group_of(split) + "/files";
  if (!open_->reader.has(object)) return {};
  std::vector<std::string> files = open_->reader.read_strings(object, info_.count(split));
  if (files.size() == info_.count(split)) return files;
  fail(path_, concat(object, " names ", files.size(), " files, but ", group_of(split), "/images has ",
                     info_.count(split), " images"));
}

std::vector<std::uint8_t> DatasetFile::read_labels(Split split, Shard part) const {
  std::vector<std::uint8_t> labels(part.count);
  open_->reader.read_rows(group_of(split) + "/labels", part.first, part.count, std::span(labels));
  const std::size_t bad = first_bad_label(labels, info_.classes());
  if (bad != part.count) {
    fail(path_, concat("entry ", part.first + bad, " of ", group_of(split), "/labels is ", int{labels[bad]},
                       ", expected below ", info_.classes(), " (the number of names in /label_names)"));
  }
  return labels;
}

void write_dataset(const std::string& path, const DatasetInfo& info, const Samples& train,
                   const Samples& test) {
  DatasetInfo counted = info;
  counted.train_count = train.labels.size();
  counted.test_count = test.labels.size();
  if (const std::string problem = problem_of(counted); !problem.empty()) {
    throw Error(ErrorKind::data, "cannot write '", path, "': ", problem);
  }
  check_samples(path, Split::train, counted, train);
  check_samples(path, Split::test, counted, test);

  hdf5::Writer file;
  file.attribute("/", "format", kDatasetFormat);
  file.attribute("/", "format_version", kFormatVersion);
  file.attribute("/", "source", counted.source);
  file.attribute("/", "train_count", counted.train_count);
  file.attribute("/", "test_count", counted.test_count);
  file.attribute("/", "classes", counted.classes());
  write_split(file, Split::train, counted, train);
  write_split(file, Split::test, counted, test);
  file.write_strings("/label_names", counted.label_names);
  file.attribute("/label_names", "dims", "[class]");
  file.attribute("/label_names", "content", "name of each class, in label order");
  file.save(path);
}

}  // namespace cifar_mpi::data
