#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace msms {
namespace {
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The affinity of the process, not of the calling thread, which the framework may have bound to a single core.
cpu_set_t ProcessMask() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(getpid(), sizeof(mask), &mask) != 0 || CPU_COUNT(&mask) == 0) CPU_SET(0, &mask);
  return mask;
}

int DefaultThreads() {
  if (const char *text = std::getenv("MINDSPEED_MS_THREADS")) {
    const int n = std::atoi(text);
    if (n >= 1 && n <= 1024) return n;
  }
  const cpu_set_t mask = ProcessMask();
  return CPU_COUNT(&mask);
}

constexpr int kHelperSpins = 1 << 14;  // about 0.3 ms: longer than the gap between two operators of a graph
constexpr std::chrono::microseconds kStall{300}, kAlone{2000};
constexpr int kMostStrikes = 3;  // 16 ms
constexpr int kWaitSpins = 1 << 12;    // then yield: the helper may need this core to finish its piece
}  // namespace

// Never destroyed: helpers may outlive static destructors.
Pool &Pool::Get() {
  static Pool *pool = new Pool();
  return *pool;
}

Pool::Pool() {
  wanted_ = DefaultThreads();
  pthread_atfork(nullptr, nullptr, [] { Pool::Get().AfterFork(); });
}

// A child process has none of its parent's threads, and their locks may be held for ever: forget both.
void Pool::AfterFork() {
  new (&helpers_) std::vector<std::thread>();
  new (&mutex_) std::mutex();
  new (&sleep_mutex_) std::mutex();
  new (&wake_) std::condition_variable();
  sleepers_ = 0;
}

// Runs before the turn's lock is released.
void Pool::Count(const char *name, int64_t nanoseconds) {
  nanoseconds_.fetch_add(nanoseconds, std::memory_order_relaxed);
  Spent &spent = spent_[name];
  ++spent.calls;
  spent.nanoseconds += nanoseconds;
}

std::string Pool::Times() {
  std::lock_guard<std::mutex> guard(mutex_);
  std::string text;
  for (const auto &[name, spent] : spent_)
    text.append(name).append(" ").append(std::to_string(spent.calls)).append(" ").append(std::to_string(spent.nanoseconds)).append("\n");
  return text;
}

void Pool::SetThreads(int n) {
  std::lock_guard<std::mutex> guard(mutex_);
  wanted_ = n < 1 ? DefaultThreads() : n > 1024 ? 1024 : n;
}

void Pool::Resize() {
  const size_t want = static_cast<size_t>(wanted_.load()) - 1;
  if (helpers_.size() == want) return;
  stop_ = true;
  {
    std::lock_guard<std::mutex> guard(sleep_mutex_);
    wake_.notify_all();
  }
  for (auto &helper : helpers_) helper.join();
  helpers_.clear();
  stop_ = false;
  for (size_t i = 0; i < want; ++i) helpers_.emplace_back([this, i] { Work(static_cast<int>(i) + 1); });
  caller_cpu_ = -1;
}

// A scheduler that sees two busy threads on one core may leave them there for seconds, at half the speed. So whenever
// the caller turns up on another core, the helpers are sent to the rest of them.
void Pool::KeepApart() {
  const int cpu = sched_getcpu();
  if (cpu == caller_cpu_) return;
  caller_cpu_ = cpu;
  cpu_set_t mask = ProcessMask();
  if (CPU_COUNT(&mask) > 1 && cpu >= 0) CPU_CLR(cpu, &mask);
  for (auto &helper : helpers_) pthread_setaffinity_np(helper.native_handle(), sizeof(mask), &mask);
}

bool Pool::TakeOne(int thread) {
  uint64_t word = claim_.load(std::memory_order_acquire);
  while ((word & 0xffff) < (word >> 16 & 0xffff)) {
    if (claim_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel)) {
      task_.load(std::memory_order_relaxed)(context_.load(std::memory_order_relaxed), static_cast<int64_t>(word & 0xffff), thread);
      done_.fetch_add(1, std::memory_order_release);
      return true;
    }
  }
  return false;
}

void Pool::Work(int thread) {
  int spins = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (TakeOne(thread)) {
      spins = 0;
    } else if (++spins < kHelperSpins) {
      Pause();
    } else {
      std::unique_lock<std::mutex> guard(sleep_mutex_);
      sleepers_.fetch_add(1);
      const uint64_t seen = claim_.load();
      if ((seen & 0xffff) >= (seen >> 16 & 0xffff)) wake_.wait(guard, [&] { return claim_.load() != seen || stop_; });
      sleepers_.fetch_sub(1);
      spins = 0;
    }
  }
}

void Pool::Dispatch(int64_t pieces, Task task, void *context) {
  Resize();
  KeepApart();
  done_.store(0, std::memory_order_relaxed);
  task_.store(task, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  const uint64_t phase = (claim_.load(std::memory_order_relaxed) >> 32) + 1;
  claim_.store(phase << 32 | static_cast<uint64_t>(pieces) << 16);  // sequentially consistent with sleepers_
  if (sleepers_.load()) {
    std::lock_guard<std::mutex> guard(sleep_mutex_);
    wake_.notify_all();
  }
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  int64_t own = 0;
  while (TakeOne(0)) ++own;
  const auto end = Clock::now();
  for (int spins = 0; done_.load(std::memory_order_acquire) != pieces; ++spins) {
    if (spins < kWaitSpins) Pause();
    else sched_yield();
  }
  // A helper still at work should need about one piece's time; one that needs far longer lost its core.
  const auto waited = Clock::now() - end;
  if (waited > kStall + 4 * (end - begin) / std::max<int64_t>(1, own)) {
    strikes_ = std::min(strikes_ + 1, kMostStrikes);
    alone_until_ = Clock::now() + kAlone * (1 << strikes_);
  } else if (strikes_ && waited < kStall) {
    strikes_ -= Clock::now() > alone_until_ + kAlone * (1 << strikes_);
  }
}

uint8_t *Pool::Scratch(size_t bytes) {
  if (bytes > scratch_bytes_) {
    std::free(scratch_);
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    const size_t rounded = (bytes + (size_t{1} << 16) - 1) >> 16 << 16;
    scratch_ = static_cast<uint8_t *>(std::aligned_alloc(64, rounded));
    if (!scratch_) throw std::bad_alloc();
    scratch_bytes_ = rounded;
  }
  return scratch_;
}
}  // namespace msms
