#include <csetjmp>
#include <cstddef>
#include <cstdio>
// These headers use FILE without including its header.
#include <jerror.h>
#include <jpeglib.h>

#include <array>

#include "cifar_mpi/base/text.hpp"
#include "data/picture.hpp"

namespace cifar_mpi::data {
namespace {

/// A usual progressive file has about ten; each may take as long as a whole baseline file.
constexpr int kMostScans = 100;

/// Errors of libjpeg end in a jump, because its default handler ends the process.
struct Errors {
  jpeg_error_mgr base{};
  std::jmp_buf back{};
  std::array<char, JMSG_LENGTH_MAX> text{};
};

Errors& errors_of(j_common_ptr jpeg) { return *reinterpret_cast<Errors*>(jpeg->err); }

[[noreturn]] void leave(j_common_ptr jpeg) {
  Errors& errors = errors_of(jpeg);
  jpeg->err->format_message(jpeg, errors.text.data());
  std::longjmp(errors.back, 1);
}

/// Warnings after which all pixels are valid: extra bytes, unusual headers.
bool is_harmless(int message) {
  return message == JWRN_EXTRANEOUS_DATA || message == JWRN_NOT_SEQUENTIAL || message == JWRN_JFIF_MAJOR ||
         message == JWRN_ADOBE_XFORM;
}

/// `level` below 0: a warning; libjpeg then invents the missing data.
void hear(j_common_ptr jpeg, int level) {
  if (level < 0 && !is_harmless(jpeg->err->msg_code)) leave(jpeg);
}

void print_nothing(j_common_ptr) {}

void count_scans(j_common_ptr jpeg) {
  const int scans = reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number;
  if (scans <= kMostScans) return;
  std::snprintf(errors_of(jpeg).text.data(), JMSG_LENGTH_MAX, "it has more than %d scans", kMostScans);
  std::longjmp(errors_of(jpeg).back, 1);
}

/// One decompression.
class Decoder {
 public:
  explicit Decoder(std::span<const std::uint8_t> file) : file_(file) {
    jpeg_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = leave;
    errors_.base.emit_message = hear;
    errors_.base.output_message = print_nothing;
    progress_.progress_monitor = count_scans;
  }
  ~Decoder() { jpeg_destroy_decompress(&jpeg_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  Picture decode() {
    guarded([this] {
      jpeg_create_decompress(&jpeg_);
      jpeg_.progress = &progress_;
      jpeg_mem_src(&jpeg_, file_.data(), static_cast<unsigned long>(file_.size()));
      jpeg_read_header(&jpeg_, TRUE);
    });
    Picture picture = make_picture(jpeg_.image_width, jpeg_.image_height);
    check_header();
    const bool cmyk = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    jpeg_.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    guarded([this] { jpeg_start_decompress(&jpeg_); });
    if (cmyk) {
      read_cmyk(picture);
    } else {
      read_rows(picture.rgb.get(), std::size_t{3} * jpeg_.output_width, jpeg_.output_height);
    }
    return picture;
  }

 private:
  /// Calls libjpeg. The jump skips only frames of `call` and of C, which may hold nothing that needs a destructor.
  template <class Call>
  void guarded(Call call) {
    if (setjmp(errors_.back) != 0) throw Misread{errors_.text.data()};
    call();
  }

  void check_header() const {
    if (jpeg_.arith_code != FALSE)
      throw Misread{"it is a JPEG with arithmetic coding, expected Huffman coding"};
    if (jpeg_.jpeg_color_space == JCS_UNKNOWN) {
      throw Misread{concat("it is a JPEG of ", jpeg_.num_components,
                           " components of an unknown kind, expected grey, colour or CMYK")};
    }
    // A block of 8x8 values takes at least a bit.
    std::uint64_t blocks = 0;
    for (int c = 0; c < jpeg_.num_components; ++c) {
      const jpeg_component_info& part = jpeg_.comp_info[c];
      blocks += std::uint64_t{part.width_in_blocks} * part.height_in_blocks;
    }
    if (blocks <= 8 * file_.size()) return;
    throw Misread{concat("its header states ", jpeg_.image_width, "x", jpeg_.image_height,
                         " pixels, more than its ", file_.size(), " bytes can hold")};
  }

  void read_rows(std::uint8_t* rows, std::size_t row_bytes, JDIMENSION count) {
    guarded([=, this] {
      const JDIMENSION end = jpeg_.output_scanline + count;
      for (std::uint8_t* at = rows; jpeg_.output_scanline < end; at += row_bytes) {
        JSAMPROW row = at;
        jpeg_read_scanlines(&jpeg_, &row, 1);
      }
    });
  }

  /// Programs that write an Adobe marker store inverted inks.
  void read_cmyk(Picture& picture) {
    const bool inverted = jpeg_.saw_Adobe_marker != FALSE;
    const auto light = [&](unsigned value) { return inverted ? value : 255 - value; };
    const auto row = std::make_unique<std::uint8_t[]>(std::size_t{4} * jpeg_.output_width);
    std::uint8_t* to = picture.rgb.get();
    for (int y = 0; y < picture.height; ++y) {
      read_rows(row.get(), 0, 1);
      for (std::size_t x = 0; x < jpeg_.output_width; ++x) {
        const unsigned black = light(row[4 * x + 3]);
        for (std::size_t c = 0; c < 3; ++c)
          *to++ = static_cast<std::uint8_t>((light(row[4 * x + c]) * black + 127) / 255);
      }
    }
  }

  std::span<const std::uint8_t> file_;
  jpeg_decompress_struct jpeg_{};
  Errors errors_;
  jpeg_progress_mgr progress_{};
};

}  // namespace

Picture decode_jpeg(std::span<const std::uint8_t> file) { return Decoder(file).decode(); }

}  // namespace cifar_mpi::data
