#pragma once

#include <hdf5.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "hdf5/hdf5.hpp"

/// Shared by the reader and the writer; includes the library's header, so nothing outside this folder
/// includes it.
namespace cifar_mpi::hdf5 {

static_assert(std::is_same_v<hid_t, Id>, "HDF5 1.10 or later is needed");

/// Before the first other call: turns off HDF5's own printing of errors (of this thread, in a thread-safe
/// build) and its clean-up at exit, which crashes on a file that could not be closed. Nothing here needs it.
/// Also turns off plugins, because HDF5 would load and run the filters that a file names.
void start_library();

/// Held during each call of the library, and until its error message is read: the usual build has one state
/// for all threads. A thread may hold several.
class Lock {
 public:
  Lock() : guard_(mutex()) {}

 private:
  static std::recursive_mutex& mutex();
  std::lock_guard<std::recursive_mutex> guard_;
};

/// HDF5's innermost message about the call that just failed.
std::string reason();

/// The type in memory of any `type` but text; not owned.
hid_t memory_type(Type type);

/// Strings of at most `length` bytes in UTF-8, padded with zeros.
Hid text_type(std::size_t length);

/// Numbers that fill their bytes, as the usual types do; HDF5 also knows others, cut from their bytes.
Type classify(hid_t type);
bool is_whole_number(hid_t type);  ///< of 8 bytes at most

/// "/a/b/c" → {"/a", "/a/b", "/a/b/c"}; "/" → {}.
std::vector<std::string> path_prefixes(std::string_view path);

}  // namespace cifar_mpi::hdf5
