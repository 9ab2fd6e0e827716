#pragma once

#include <vector>

#include "cuda/device_runner.hpp"

namespace cifar_mpi::cuda {

/// The list as it stands: the streams keep the order of their lane, events that between lanes.
class LanesRunner : public DeviceRunner {
 public:
  LanesRunner(Device& device, engine::StepProgram program);

 protected:
  void enqueue(int times) override;

  /// A replay begins: all lanes go on from where compute stands.
  void fork();
  /// It ends: compute goes on from where all stand.
  void join();
  void set(engine::LaneId lane, engine::MarkId mark) const;
  void wait(engine::LaneId lane, engine::MarkId mark) const;

 private:
  void enqueue_once();
  void hold_back() const;
  void wait_for_event(engine::LaneId lane, const Event& event) const;

  Event fork_;
  std::vector<Event> marks_;
  std::vector<Event> joins_;  ///< by lane
};

/// For programs with tasks of the host among those of the device: messages between ranks.
///
/// One thread walks the lanes. Each is enqueued on its stream as far as it goes: up to a task of the host, which begins
/// when the stream is done with all before it, and up to a wait for a mark that is not set, because a task of the host
/// stands before it. The device so has all to work on that waits for no message.
class HostLanesRunner final : public LanesRunner {
 public:
  HostLanesRunner(Device& device, engine::StepProgram program);

 private:
  /// Where a task of the host stands.
  enum class Phase : std::uint8_t { ahead, lane_drains, under_way };
  struct Queue {
    std::vector<engine::Instruction> lines;  ///< this lane's part of the list
    std::size_t next = 0;
    Phase phase = Phase::ahead;  ///< of the task of the host at `next`
    Event drained;

    bool done() const { return next == lines.size(); }
  };

  void enqueue(int times) override;
  void enqueue_once();
  bool advance(Queue& queue);
  bool is_past(const engine::Instruction& line, Queue& queue);
  bool is_past_host(const engine::Instruction& line, Queue& queue);

  std::vector<Queue> queues_;          ///< by lane
  std::vector<std::uint64_t> set_in_;  ///< mark → the last replay that set it
  std::uint64_t replay_ = 0;
};

}  // namespace cifar_mpi::cuda
