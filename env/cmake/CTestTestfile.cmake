# The test of an installed tree:  ctest --test-dir PREFIX/share/cifar_mpi
add_test(SmokeTest "${CMAKE_CURRENT_LIST_DIR}/env/smoke_test.sh")
set_tests_properties(SmokeTest PROPERTIES TIMEOUT 600)
