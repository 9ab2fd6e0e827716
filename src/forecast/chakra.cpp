#include <cmath>
#include <cstdint>

#include "forecast/export.hpp"
#include "report/protobuf.hpp"

namespace cifar_mpi::forecast {
namespace {

using Kind = RecordedStep::Kind;
using Ids = std::vector<std::int64_t>;

/// Of NodeType and CollectiveCommType.
constexpr std::int64_t kComputes = 4, kCollective = 7, kAllReduce = 0;
/// Fields of an AttributeProto's value.
constexpr std::uint32_t kInt64 = 9, kBool = 27;

/// A message after its length.
std::string delimited(const report::Message& message) {
  return report::Message().message(0, message).text().substr(1);  // without the key of the field
}

class Trace {
 public:
  /// Rounds the ends of work, so that microseconds do not add up to an error.
  std::int64_t work(double seconds, const Ids& after) {
    const std::int64_t begin = std::llround(1e6 * work_s_);
    work_s_ += seconds;
    report::Message node = head("work", kComputes, after);
    node.number(7, std::int64_t{std::llround(1e6 * work_s_)} - begin);
    return add(attribute(node, "is_cpu_op", kBool, 0));
  }

  std::int64_t all_reduce(const std::string& name, double bytes, const Ids& after) {
    report::Message node = head(name, kCollective, after);
    attribute(node, "is_cpu_op", kBool, 0);  // simulators refuse collectives of a CPU
    attribute(node, "comm_type", kInt64, kAllReduce);
    return add(attribute(node, "comm_size", kInt64, std::llround(bytes)));
  }

  const std::string& text() const { return text_; }

 private:
  /// id, name, type, data_deps
  report::Message head(const std::string& name, std::int64_t type, const Ids& after) {
    report::Message node;
    node.number(1, ++last_).bytes(2, name).number(3, type);
    for (const std::int64_t id : after) node.number(5, id);
    return node;
  }

  static report::Message& attribute(report::Message& node, const char* name, std::uint32_t field,
                                    std::int64_t value) {
    return node.message(10, report::Message().bytes(1, name).number(field, value));
  }

  std::int64_t add(const report::Message& node) {
    text_ += delimited(node);
    return last_;
  }

  std::string text_{kChakraBegins};
  std::int64_t last_ = 0;
  double work_s_ = 0.0;
};

}  // namespace

std::string chakra_trace(const ExportedStep& step, int rank) {
  Trace trace;
  Ids now, ends(step.names.size());
  for (const RecordedStep::Action& action :
       drawn_step(step.recording, static_cast<std::size_t>(rank), 0).actions) {
    const double work_s = seconds_of(action, step.amount);
    if (work_s > 0.0) now = {trace.work(work_s, now)};
    const std::size_t c = action.collective;
    if (action.kind == Kind::wait && ends[c] > 0) now.push_back(ends[c]);
    if (action.kind != Kind::ready) continue;
    Ids begin = now;
    if (step.recording.collectives[c].before >= 0) begin.push_back(ends[c - 1]);
    ends[c] = trace.all_reduce(step.names[c], step.floats[c] * step.float_bytes, begin);
  }
  return trace.text();
}

}  // namespace cifar_mpi::forecast
