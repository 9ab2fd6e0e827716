#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cifar_mpi::page {

/// `text`, which may be a stranger's, for the content of an element or an attribute in double quotes. Control characters
/// and what turns the direction of writing round become visible; line feeds stay when `lines`.
std::string html(std::string_view text, bool lines = false);

/// 59.50, 0.0123, 12300, 1.2e-07: about three digits that count.
std::string figure(double value);
/// "12300"
std::string whole(double value);
/// "59.50 %"
std::string percent(double share);
/// The classes that tell the style sheet of a place or length: "p12 q34" for 0.1234, to a ten-thousandth. Beyond 0 to 1
/// the nearer end; NaN is 0.
std::string place_class(double share);
/// "42 s", "12 min 5 s", "3 h 7 min"
std::string duration(double seconds);

/// At most about `most` bytes of it, whole characters, and … where something is missing.
std::string shortened(const std::string& text, std::size_t most);

}  // namespace cifar_mpi::page
