// Threads that help the caller of an operator. The caller never waits for a helper that has taken no work: on a busy
// machine a descheduled helper costs its share of speed, not a stall at every step.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace msms {
class Pool {
 public:
  static Pool &Get();
  int threads() const { return wanted_.load(); }
  // Number of threads from the next operator on; 0 means one for each core of the process.
  void SetThreads(int n);
  // Held by an operator while it runs: one at a time uses the helpers and the scratch memory. Its time is counted.
  class Turn {
   public:
    Turn(Pool &pool, const char *name) : pool_(pool), name_(name), lock_(pool.mutex_), start_(std::chrono::steady_clock::now()) {}
    ~Turn() { pool_.Count(name_, std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count()); }

   private:
    Pool &pool_;
    const char *name_;
    std::unique_lock<std::mutex> lock_;
    std::chrono::steady_clock::time_point start_;
  };
  // The operator is named after the function that calls.
  Turn Lock(const char *name = __builtin_FUNCTION()) { return Turn(*this, name); }
  // Seconds spent inside operators since the library was loaded.
  double Seconds() const { return static_cast<double>(nanoseconds_.load()) * 1e-9; }
  // "name calls nanoseconds" of each operator, a line each.
  std::string Times();
  // Calls body(begin, end, thread) for pieces of [0, n) on the caller (thread 0) and the helpers; returns when all are done.
  template <class Body>
  void For(int64_t n, int64_t piece, const Body &body) {
    if (n <= 0) return;
    if (n / piece >= kMaxPieces) piece = n / kMaxPieces + 1;
    const int64_t pieces = (n + piece - 1) / piece;
    if (pieces == 1 || threads() == 1 || Alone()) return body(int64_t{0}, n, 0);
    struct Context {
      const Body *body;
      int64_t n, piece;
    } context{&body, n, piece};
    Dispatch(pieces, [](void *p, int64_t i, int thread) {
      const auto *c = static_cast<const Context *>(p);
      const int64_t begin = i * c->piece;
      (*c->body)(begin, begin + c->piece < c->n ? begin + c->piece : c->n, thread);
    }, &context);
  }
  // Scratch memory of the running operator, kept between operators. Throws bad_alloc.
  uint8_t *Scratch(size_t bytes);

 private:
  using Task = void (*)(void *context, int64_t piece, int thread);
  static constexpr int64_t kMaxPieces = 60000;
  Pool();
  void Dispatch(int64_t pieces, Task task, void *context);
  bool TakeOne(int thread);
  // True for a while after a helper was descheduled with work in hand: then the cores are not ours, and waiting for
  // them costs more than their help brings.
  bool Alone() const { return strikes_ && std::chrono::steady_clock::now() < alone_until_; }
  void Work(int thread);
  void Resize();
  void KeepApart();
  void AfterFork();
  void Count(const char *name, int64_t nanoseconds);

  std::mutex mutex_;
  std::atomic<int> wanted_{1};
  std::vector<std::thread> helpers_;
  // One word says which phase runs, how many pieces it has and which comes next, so that a claim by compare-and-swap
  // can only succeed while the phase is open: phase (32 bits), pieces (16), next (16).
  alignas(64) std::atomic<uint64_t> claim_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<Task> task_{nullptr};
  std::atomic<void *> context_{nullptr};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  int caller_cpu_ = -1;  // where the caller last was: helpers stay away from it
  int strikes_ = 0;  // stalls in a row; each doubles the time without helpers
  std::chrono::steady_clock::time_point alone_until_;
  std::atomic<int64_t> nanoseconds_{0};
  struct Spent {
    int64_t calls = 0, nanoseconds = 0;
  };
  std::map<std::string_view, Spent> spent_;  // guarded by mutex_; names are string literals
  uint8_t *scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};
}  // namespace msms
