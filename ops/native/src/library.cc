// What the library says of itself, and the choice of instruction set.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "pool.h"

namespace msms {
namespace {
const Kernels *Choose(const char *name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  if (!name) return avx512 ? &kAvx512 : avx2 ? &kAvx2 : &kPortable;
  if (!std::strcmp(name, "avx512") && avx512) return &kAvx512;
  if (!std::strcmp(name, "avx2") && avx2) return &kAvx2;
#else
  if (!name) return &kPortable;
#endif
  return std::strcmp(name, "portable") ? nullptr : &kPortable;
}
std::atomic<const Kernels *> &Current() {
  static std::atomic<const Kernels *> current{[] {
    const Kernels *asked = Choose(std::getenv("MINDSPEED_MS_ISA"));
    return asked ? asked : Choose(nullptr);
  }()};
  return current;
}
}  // namespace
const Kernels &Active() { return *Current().load(std::memory_order_relaxed); }
}  // namespace msms

extern "C" {
// Raised by one whenever an entry point's inputs, attributes or the arena's layout change.
int MsmsAbi() { return 1; }
const char *MsmsIsa() { return msms::Active().name; }
// 0 when the instruction set is there and now in use, 1 when it is not.
int MsmsSetIsa(const char *name) {
  const msms::Kernels *asked = name ? msms::Choose(name) : nullptr;
  if (!asked) return 1;
  msms::Current().store(asked);
  return 0;
}
int MsmsThreads() { return msms::Pool::Get().threads(); }
// Seconds spent inside kernels since the library was loaded, of all callers.
double MsmsSeconds() { return msms::Pool::Get().Seconds(); }
// Calls and nanoseconds of each operator, as text of at most `size` bytes; returns the bytes that all of it needs.
int64_t MsmsTimes(char *buffer, int64_t size) {
  const std::string text = msms::Pool::Get().Times();
  if (buffer && size > 0) std::memcpy(buffer, text.data(), std::min<size_t>(static_cast<size_t>(size), text.size()));
  return static_cast<int64_t>(text.size());
}
// Sets the number of threads; 0 means one for each core of the process.
void MsmsSetThreads(int threads) { msms::Pool::Get().SetThreads(threads); }
}
