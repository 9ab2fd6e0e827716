#include "comm/numa.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <string_view>
#include <system_error>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::comm {
namespace {

/// More cores than any kernel knows.
constexpr int kMostCores = 1 << 20;

/// The number at the beginning of `text`, which loses it; -1: none, or too large.
int take_number(std::string_view& text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc{} && number < kMostCores ? number : -1;
}

void add_core(CoreMask& mask, int core) {
  const auto at = static_cast<std::size_t>(core);
  if (mask.size() <= at / 64) mask.resize(at / 64 + 1, 0);
  mask[at / 64] |= std::uint64_t{1} << (at % 64);
}

/// Of "0-3,8"; empty if it is anything else.
CoreMask parse_ranges(std::string_view text) {
  CoreMask mask;
  while (!text.empty()) {
    const int first = take_number(text);
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number(text);
    }
    if (first < 0 || last < first) return {};
    for (int core = first; core <= last; ++core) add_core(mask, core);
    if (!text.starts_with(',')) break;
    text.remove_prefix(1);
  }
  return mask;
}

/// "0-3,8" of numbers in ascending order.
std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += concat(i == 0 ? "" : ",", numbers[i]);
    if (end - i > 1) text += concat('-', numbers[end - 1]);
    i = end;
  }
  return text;
}

std::vector<int> cores_of(const CoreMask& mask) {
  std::vector<int> cores;
  for (std::size_t core = 0; core < 64 * mask.size(); ++core) {
    if (mask[core / 64] >> (core % 64) & 1) cores.push_back(static_cast<int>(core));
  }
  return cores;
}

/// Of masks of any length.
bool equal(const CoreMask& a, const CoreMask& b) { return cores_of(a) == cores_of(b); }

/// Which of `domains` belong to rank `rank` of `ranks`: [first, end).
std::pair<std::size_t, std::size_t> domains_of(std::size_t rank, std::size_t ranks, std::size_t domains) {
  const std::size_t first = rank * domains / ranks;
  return {first, std::max(first + 1, (rank + 1) * domains / ranks)};
}

}  // namespace

std::vector<NumaDomain> numa_domains(const std::filesystem::path& folder) {
  std::vector<NumaDomain> domains;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("node")) continue;
    std::string_view digits = std::string_view(name).substr(4);
    const int number = take_number(digits);
    std::string list;
    std::ifstream file(entry.path() / "cpulist");
    if (number < 0 || !digits.empty() || !std::getline(file, list)) continue;
    CoreMask cores = parse_ranges(list);
    if (count_cores(cores) > 0) domains.push_back({number, std::move(cores)});
  }
  std::ranges::sort(domains, {}, &NumaDomain::number);
  return domains;
}

CoreMask home_mask(std::span<const CoreMask> masks, std::size_t mine, const CoreMask& allowed,
                   std::span<const NumaDomain> domains) {
  const CoreMask& whole = masks[mine];
  std::vector<CoreMask> usable;
  for (const NumaDomain& domain : domains) {
    CoreMask part = intersect(domain.cores, whole);
    part.resize(whole.size(), 0);
    if (count_cores(part) > 0) usable.push_back(std::move(part));
  }
  const bool open = equal(whole, allowed) &&
                    std::ranges::all_of(masks, [&](const CoreMask& mask) { return equal(mask, whole); });
  if (!open || masks.size() < 2 || usable.size() < 2) return whole;

  std::vector<CoreMask> homes;
  for (std::size_t rank = 0; rank < masks.size(); ++rank) {
    CoreMask& home = homes.emplace_back(whole.size(), 0);
    const auto [first, end] = domains_of(rank, masks.size(), usable.size());
    for (std::size_t domain = first; domain < end; ++domain) {
      std::ranges::transform(home, usable[domain], home.begin(), std::bit_or<>());
    }
  }
  const int even_share = count_cores(whole) / static_cast<int>(masks.size());
  const bool fair = std::ranges::all_of(homes, [&](const CoreMask& home) {
    return count_cores(home) / std::ranges::count(homes, home) >= even_share;
  });
  return fair ? homes[mine] : whole;
}

void keep_to(CoreMask mask) {
  sched_setaffinity(0, mask.size() * sizeof mask[0], reinterpret_cast<const cpu_set_t*>(mask.data()));
}

std::string place_text(const CoreMask& mask, std::span<const NumaDomain> domains) {
  const std::vector<int> cores = cores_of(mask);
  std::vector<int> numbers;
  for (const NumaDomain& domain : domains) {
    if (have_common_cores(mask, domain.cores)) numbers.push_back(domain.number);
  }
  std::string text = concat(cores.size() == 1 ? "core " : "cores ", ranges_text(cores));
  if (!numbers.empty())
    text += concat(numbers.size() == 1 ? ", NUMA domain " : ", NUMA domains ", ranges_text(numbers));
  return text;
}

std::vector<std::string> place_lines(std::span<const std::string> hosts,
                                     std::span<const std::string> places) {
  std::vector<std::string> lines;
  for (std::size_t first = 0; first < hosts.size();) {
    std::size_t end = first + 1;
    while (end < hosts.size() && hosts[end] == hosts[first] && places[end] == places[first]) ++end;
    const std::string ranks =
        end - first == 1 ? concat("rank ", first) : concat("ranks ", first, '-', end - 1);
    lines.push_back(concat(ranks, " on ", hosts[first], ": ", places[first]));
    first = end;
  }
  return lines;
}

}  // namespace cifar_mpi::comm
