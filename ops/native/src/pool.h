// Worker threads for one operator at a time: they spin briefly between operators, sleep when nothing comes.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace msms {
// What the threads of one operator share: a barrier and counters that hand out work in small pieces.
class Team {
 public:
  explicit Team(int threads) : threads_(threads) {}
  int threads() const { return threads_; }
  void Barrier();
  // Calls body(begin, end) for pieces of [0, n) until none is left; each phase uses its own counter.
  template <class Body>
  void Share(int phase, int64_t n, int64_t piece, Body body) {
    if (threads_ == 1) {
      if (n > 0) body(int64_t{0}, n);
      return;
    }
    for (;;) {
      const int64_t begin = next_[phase].fetch_add(piece, std::memory_order_relaxed);
      if (begin >= n) return;
      body(begin, begin + piece < n ? begin + piece : n);
    }
  }
  static constexpr int kPhases = 12;

 private:
  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
  alignas(64) std::atomic<int64_t> next_[kPhases] = {};
};

class Pool {
 public:
  static Pool &Get();
  int threads() const { return wanted_.load(); }
  void SetThreads(int n);
  // Runs task(context, team, thread) on `threads()` threads, the caller being thread 0; one operator at a time.
  void Run(void (*task)(void *, Team &, int), void *context);
  // Scratch memory of the running operator, kept between operators; call inside Run's owner only. Throws bad_alloc.
  uint8_t *Scratch(size_t bytes);
  std::unique_lock<std::mutex> Lock() { return std::unique_lock<std::mutex>(mutex_); }
  void AfterFork();

 private:
  Pool();
  void Work(int thread, uint64_t seen);
  void Resize();
  std::mutex mutex_;
  std::atomic<int> wanted_{1};
  std::vector<std::thread> workers_;
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int> done_{0}, sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  void (*task_)(void *, Team &, int) = nullptr;
  void *context_ = nullptr;
  Team *team_ = nullptr;
  uint8_t *scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};
}  // namespace msms
