#include "comm/request_list.hpp"

#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {

RequestList::~RequestList() {
  for (MPI_Request& request : values_) {
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
}

MPI_Request* RequestList::add() {
  ended_.push_back(0);
  return &values_.emplace_back(MPI_REQUEST_NULL);
}

void RequestList::start_all(const char* purpose) {
  if (!values_.empty()) check(MPI_Startall(static_cast<int>(values_.size()), values_.data()), purpose);
}

void RequestList::start(int i, const char* purpose) {
  check(MPI_Start(&values_[static_cast<std::size_t>(i)]), purpose);
}

bool RequestList::all_done(const char* purpose) {
  int done = 0;
  check(MPI_Testall(static_cast<int>(values_.size()), values_.data(), &done, MPI_STATUSES_IGNORE), purpose);
  return done != 0;
}

void RequestList::each_done(const char* purpose, const std::function<void(int)>& done) {
  int count = 0;
  check(MPI_Testsome(static_cast<int>(values_.size()), values_.data(), &count, ended_.data(),
                     MPI_STATUSES_IGNORE),
        purpose);
  if (count == MPI_UNDEFINED) return;  // none is active
  for (int i = 0; i < count; ++i) done(ended_[static_cast<std::size_t>(i)]);
}

}  // namespace cifar_mpi::comm
