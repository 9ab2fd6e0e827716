# Installs, besides the programs, share/cifar_mpi: the licence, the pages, the job files and the files that they need,
# each at its path in the checkout, so that links between pages work; and a test of the installed tree.
set(share ${CMAKE_INSTALL_DATADIR}/cifar_mpi)
file(GLOB installed RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS
     README.md LICENSE CITATION.cff env/*.md env/*.sh env/modulefiles/* jobs/*.* jobs/recipes/* src/*.md src/*/*.md tests/*.md
     src/page/page.css tools/README.md tools/accuracy tools/files.py tools/options.py tools/report.svg tools/study*)
list(REMOVE_ITEM installed env/build_deps.sh env/install_deps.sh)
foreach(file ${installed})
  get_filename_component(folder ${file} DIRECTORY)
  if(file MATCHES "smoke_test\\.sh$|tools/(accuracy|study|study_energy\\.py)$")
    install(PROGRAMS ${file} DESTINATION ${share}/${folder})
  else()
    install(FILES ${file} DESTINATION ${share}/${folder})
  endif()
endforeach()
install(FILES env/cmake/CTestTestfile.cmake DESTINATION ${share})
