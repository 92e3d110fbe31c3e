#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

namespace msms {
namespace {
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The affinity of the process, not of the calling thread: the framework may have bound that one to a single core,
// and a worker that inherited the mask would share the core for ever.
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
constexpr int kSpins = 20000;       // about 0.3 ms: longer than the gap between two operators of a graph
constexpr int kBarrierSpins = 4000;  // then yield: the other thread may need this core
}  // namespace

void Team::Barrier() {
  if (threads_ == 1) return;
  const int round = round_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
    if (spins < kBarrierSpins) Pause();
    else sched_yield();
  }
}

// Never destroyed: workers may outlive static destructors.
Pool &Pool::Get() {
  static Pool *pool = new Pool();
  return *pool;
}

Pool::Pool() {
  wanted_ = DefaultThreads();
  pthread_atfork(nullptr, nullptr, [] { Pool::Get().AfterFork(); });
}

// A child process has none of its parent's threads: forget them without joining.
void Pool::AfterFork() {
  auto *lost = new std::vector<std::thread>(std::move(workers_));
  (void)lost;
  new (&mutex_) std::mutex();
  new (&sleep_mutex_) std::mutex();
  new (&wake_) std::condition_variable();
  workers_.clear();
  sleepers_ = 0;
  done_ = 0;
}

void Pool::SetThreads(int n) {
  if (n < 1) n = DefaultThreads();
  auto lock = Lock();
  wanted_ = n > 1024 ? 1024 : n;
}

void Pool::Resize() {
  const size_t want = static_cast<size_t>(wanted_.load()) - 1;
  if (workers_.size() == want) return;
  stop_ = true;
  epoch_.fetch_add(1);
  {
    std::lock_guard<std::mutex> guard(sleep_mutex_);
    wake_.notify_all();
  }
  for (auto &worker : workers_) worker.join();
  workers_.clear();
  stop_ = false;
  const uint64_t seen = epoch_.load();
  for (size_t i = 0; i < want; ++i) workers_.emplace_back([this, i, seen] { Work(static_cast<int>(i) + 1, seen); });
}

void Pool::Work(int thread, uint64_t seen) {
  const cpu_set_t mask = ProcessMask();
  sched_setaffinity(0, sizeof(mask), &mask);
  for (;;) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        Pause();
        continue;
      }
      std::unique_lock<std::mutex> guard(sleep_mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(guard, [&] { return epoch_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_) return;
    task_(context_, *team_, thread);
    done_.fetch_add(1, std::memory_order_release);
  }
}

void Pool::Run(void (*task)(void *, Team &, int), void *context) {
  Resize();
  const int workers = static_cast<int>(workers_.size());
  Team team(workers + 1);
  task_ = task;
  context_ = context;
  team_ = &team;
  done_.store(0, std::memory_order_relaxed);
  epoch_.fetch_add(1);
  if (sleepers_.load()) {
    std::lock_guard<std::mutex> guard(sleep_mutex_);
    wake_.notify_all();
  }
  task(context, team, 0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != workers; ++spins) {
    if (spins < kBarrierSpins) Pause();
    else sched_yield();
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
