#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cifar_mpi::page {

/// Escapes untrusted `text` for the content of an element or for an attribute in double quotes. Control
/// characters and marks of writing direction become visible; line feeds stay with `lines`.
std::string html(std::string_view text, bool lines = false);

inline constexpr const char* kWords = " class=\"word\"";  ///< of a column of words
/// The head of a column; `name` is HTML.
std::string column(std::string_view name, const char* attributes = "");
/// A table in a scrollable box. `head` holds the columns; `label` is its accessible name.
std::string table_html(const std::string& label, const std::string& head, const std::string& rows,
                       const char* attributes = "");

/// 59.50, 0.0123, 12300, 1.2e-07: about three significant digits.
std::string figure(double value);
/// "12300"
std::string whole(double value);
/// "59.50 %"
std::string percent(double share);
/// The style-sheet classes of a position or length: "p12 q34" for 0.1234, to a ten-thousandth. Values outside
/// 0 to 1 become the nearer end; NaN becomes 0.
std::string place_class(double share);
/// "42 s", "12 min 5 s", "3 h 7 min"
std::string duration(double seconds);

/// At most about `most` bytes of `text`, in whole characters, with … if it is cut.
std::string shortened(const std::string& text, std::size_t most);

}  // namespace cifar_mpi::page
