#include "cifar_mpi/run/evaluation_file.hpp"

#include <algorithm>

#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"

namespace cifar_mpi::run {
namespace {

constexpr const char* kEvaluationFormat = "cifar_mpi evaluation";
constexpr std::int64_t kEvaluationVersion = 1;
constexpr std::size_t kMostClasses = 255;

/// Throws unless the content is consistent.
void require_sound(const EvaluationFile& e, const hdf5::Dims& confusion, const hdf5::Dims& images,
                   const std::string& path) {
  const auto require = [&](bool sound, const char* what) {
    if (!sound) throw Error(ErrorKind::checkpoint, path, " is damaged: ", what);
  };
  const std::size_t classes = e.label_names.size(), n = e.labels.size();
  require(classes >= 2 && classes <= kMostClasses, "it does not have 2 to 255 /label_names");
  require(confusion == hdf5::Dims{classes, classes},
          "its /confusion does not have the size of its /label_names");
  require(e.weights == "ema" || e.weights == "raw", "its weights are neither ema nor raw");
  require(n <= kMostWrongImages && e.predictions.size() == n && e.indices.size() == n && images[0] == n,
          "the data sets of its /wrong differ in length");
  const auto a_class = [&](std::uint8_t label) { return label < classes; };
  require(std::ranges::all_of(e.labels, a_class) && std::ranges::all_of(e.predictions, a_class),
          "its /wrong names a class that it does not have");
  const Mistakes& all = e.mistakes;
  const std::size_t m = all.indices.size();
  require(all.labels.size() == m && all.predictions.size() == m && all.probabilities.size() == m &&
              (all.files.empty() || all.files.size() == m),
          "the data sets of its /mistakes differ in length");
  require(std::ranges::all_of(all.labels, a_class) && std::ranges::all_of(all.predictions, a_class),
          "its /mistakes names a class that it does not have");
  require(std::ranges::is_sorted(all.indices), "its /mistakes are not in order");
}

void write(hdf5::Writer& file, const Mistakes& mistakes) {
  const auto put = [&](const char* object, const auto& values) {
    file.write(object, {values.size()}, values);
  };
  put("/mistakes/indices", mistakes.indices);
  put("/mistakes/labels", mistakes.labels);
  put("/mistakes/predictions", mistakes.predictions);
  put("/mistakes/probabilities", mistakes.probabilities);
  if (!mistakes.files.empty()) file.write_strings("/mistakes/files", mistakes.files);
}

Mistakes read_mistakes(const hdf5::Reader& file) {
  Mistakes mistakes;
  if (!file.has("/mistakes")) return mistakes;
  mistakes.indices = file.read<std::uint64_t>("/mistakes/indices");
  mistakes.labels = file.read<std::uint8_t>("/mistakes/labels");
  mistakes.predictions = file.read<std::uint8_t>("/mistakes/predictions");
  mistakes.probabilities = file.read<float>("/mistakes/probabilities");
  if (file.has("/mistakes/files"))
    mistakes.files = file.read_strings("/mistakes/files", mistakes.indices.size());
  return mistakes;
}

}  // namespace

void write_evaluation(const DirectoryEntry& target, const EvaluationFile& e) {
  hdf5::Writer file(kEvaluationFormat, kEvaluationVersion);
  file.attribute("/", "step", e.step);
  file.attribute("/", "weights", e.weights);
  file.attribute("/", "views", e.views);
  file.write_strings("/label_names", e.label_names);
  const std::uint64_t classes = e.label_names.size(), n = e.labels.size();
  file.write("/confusion", {classes, classes}, e.confusion);
  file.attribute("/confusion", "dims", "[class of the image, predicted class]");
  const auto size = [](int pixels) { return static_cast<std::uint64_t>(pixels); };
  file.write("/wrong/images", {n, size(e.image.height), size(e.image.width), size(e.image.channels)},
             e.images);
  file.write("/wrong/labels", {n}, e.labels);
  file.write("/wrong/predictions", {n}, e.predictions);
  file.write("/wrong/indices", {n}, e.indices);
  write(file, e.mistakes);
  file.save(target);
}

EvaluationFile read_evaluation(const DirectoryEntry& entry) {
  const hdf5::Reader file = hdf5::open_record(entry, kEvaluationFormat, kEvaluationVersion);
  EvaluationFile e;
  e.step = file.attribute<std::uint64_t>("/", "step");
  e.weights = file.attribute<std::string>("/", "weights");
  if (file.has_attribute("/", "views")) e.views = file.attribute<std::uint64_t>("/", "views");
  e.label_names = file.read_strings("/label_names", kMostClasses);
  const hdf5::Dims confusion = file.dims("/confusion"), images = file.dims("/wrong/images");
  const bool drawable = images.size() == 4 && images[0] <= kMostWrongImages &&
                        images[1] <= kMostWrongPixels && images[2] <= kMostWrongPixels && images[3] >= 1 &&
                        images[3] <= 4;
  if (!drawable || hdf5::count(confusion) > kMostClasses * kMostClasses)
    throw Error(ErrorKind::checkpoint, file.path(), " is damaged: /wrong/images are ",
                hdf5::to_string(images), ", /confusion is ", hdf5::to_string(confusion));
  e.confusion = file.read<std::uint64_t>("/confusion");
  e.image = {static_cast<int>(images[1]), static_cast<int>(images[2]), static_cast<int>(images[3])};
  e.images = file.read<std::uint8_t>("/wrong/images");
  for (const auto& [name, values] :
       {std::pair{"/wrong/labels", &e.labels}, {"/wrong/predictions", &e.predictions}}) {
    if (hdf5::count(file.dims(name)) <= kMostWrongImages) *values = file.read<std::uint8_t>(name);
  }
  if (hdf5::count(file.dims("/wrong/indices")) <= kMostWrongImages)
    e.indices = file.read<std::uint64_t>("/wrong/indices");
  e.mistakes = read_mistakes(file);
  require_sound(e, confusion, images, file.path());
  return e;
}

}  // namespace cifar_mpi::run
