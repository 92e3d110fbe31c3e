// Copies of tensors that are put off until an optimizer is about to change them: its update reads them anyway, so that a
// snapshot of weights and optimizer state costs little more than its writing.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "pool.h"

namespace msms {
struct Copy {
  uint8_t *to;
  const uint8_t *from;
  int64_t bytes;
};
// Past the caches where the processor can: what is copied is not read again soon.
void CopyPast(uint8_t *to, const uint8_t *from, int64_t bytes);
// Copies buffers that do not overlap, on all threads. The pool must be locked. Throws bad_alloc.
void CopyAll(Pool &pool, const std::vector<Copy> &copies);

class Aside {
 public:
  static Aside &Get();
  // All of these are to be called with the pool locked. `Set` makes the copies that still wait first.
  void Set(Pool &pool, int64_t count, const void *const *from, void *const *to, const int64_t *bytes);
  // Makes the copies that still wait, and says that none does.
  void Now(Pool &pool);
  // Makes the copies that have not been taken.
  void Finish(Pool &pool);
  // Where the copy of a tensor goes that begins here and has this size; it is then the caller's to make. Or nullptr.
  uint8_t *Take(const void *from, int64_t bytes);
  // Whether copies wait; may be asked without the lock.
  bool waiting() const { return waiting_.load(std::memory_order_acquire); }
  void Done() { waiting_.store(false, std::memory_order_release); }

 private:
  std::unordered_map<const void *, Copy> items_;  // by source
  std::atomic<bool> waiting_{false};
};
}  // namespace msms
