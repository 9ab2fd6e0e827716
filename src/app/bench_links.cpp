#include <fmt/core.h>

#include <string_view>

#include "app/bench_allreduce.hpp"
#include "app/program.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/benchmark.hpp"

namespace cifar_mpi::app {
namespace {

constexpr std::string_view kLinksBegin = R"({"format": "cifar_mpi links")";

std::string to_json(const comm::LinkBenchmark& links) {
  std::string bytes, us;
  for (const auto& [length, seconds] : links.message) {
    bytes += fmt::format("{}{}", bytes.empty() ? "" : ", ", length);
    us += fmt::format("{}{:.3f}", us.empty() ? "" : ", ", 1e6 * seconds);
  }
  return fmt::format(
      "{}, \"version\": 1, \"nodes\": {}, \"message_bytes\": [{}], \"message_us\": [{}], "
      "\"bandwidth_gbit_s\": {:.6g}, \"memory_gb_s\": {:.6g}}}\n",
      kLinksBegin, links.nodes, bytes, us, 8e-9 * links.bytes_per_s, 1e-9 * links.memory_bytes_per_s);
}

}  // namespace

void add_links(CLI::App& app, LinksOptions& options) {
  app.add_option("--seconds", options.seconds, "Measuring time for each length of messages")
      ->check(number(0.001, 3600.0));
  app.add_option("--json", options.json, "Also write the file for cifar_mpi_report --links");
}

int bench_links(const LinksOptions& options, comm::World& world) {
  prepare_json(world, options.json, kLinksBegin, "a file of cifar_mpi_bench links");
  const comm::LinkBenchmark links = comm::benchmark_links(options.seconds, world);
  const Log log(world.rank());
  log.info(links.nodes == 2
               ? std::string("messages between two nodes, in one direction at a time (median)")
               : concat("messages around a ring of ", links.nodes, " nodes, on all links at once (median)"));
  log.info("     bytes          us");
  for (const auto& [bytes, seconds] : links.message)
    log.info(fmt::format("{:10} {:11.2f}", bytes, 1e6 * seconds));
  log.info(fmt::format("bandwidth {:.2f} Gbit/s in each direction; memory {:.1f} GB/s for each rank",
                       8e-9 * links.bytes_per_s, 1e-9 * links.memory_bytes_per_s));
  write_json(world, options.json, to_json(links));
  return 0;
}

}  // namespace cifar_mpi::app
