# cifar_mpi_precompile(HOST TARGET...): the headers that most sources include are parsed once, for HOST; a HOST's first
# call lists them after HEADERS. Sources still include what they use: -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds
# without. GCC alone: clang takes them only from a target whose every flag is the same. Not with ccache, which does not
# cache such compilations.
function(cifar_mpi_precompile host)
  cmake_parse_arguments(PARSE_ARGV 1 precompiled "" "" "HEADERS")
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR "${CMAKE_CXX_COMPILER};${CMAKE_CXX_COMPILER_LAUNCHER}" MATCHES "ccache")
    return()
  endif()
  if(precompiled_HEADERS)
    target_precompile_headers(${host} PRIVATE ${precompiled_HEADERS})
  endif()
  foreach(target ${precompiled_UNPARSED_ARGUMENTS})
    target_precompile_headers(${target} REUSE_FROM ${host})
  endforeach()
endfunction()

# The headers of nearly every target.
set(common_headers <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span> <sstream>
    <stdexcept> <string> <string_view> <utility> <variant> <vector> <fmt/core.h>)
