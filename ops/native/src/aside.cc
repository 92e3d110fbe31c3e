// See aside.h.
#include "aside.h"

#include <algorithm>
#include <cstring>
#include <new>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace msms {
namespace {
constexpr int64_t kCopyPiece = int64_t{1} << 18;
}

void CopyPast(uint8_t *to, const uint8_t *from, int64_t bytes) {
#if defined(__SSE2__)
  const int64_t head = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(to) & 15);
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t i = head;
  for (; i + 64 <= bytes; i += 64)
    for (int part = 0; part < 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i *>(to + i + part), _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i + part)));
  std::memcpy(to + i, from + i, static_cast<size_t>(bytes - i));
  _mm_sfence();
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

void CopyAll(Pool &pool, const std::vector<Copy> &copies) {
  std::vector<Copy> pieces;
  for (const Copy &copy : copies)
    for (int64_t at = 0; at < copy.bytes; at += kCopyPiece)
      pieces.push_back({copy.to + at, copy.from + at, std::min(kCopyPiece, copy.bytes - at)});
  pool.For(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Copy &piece = pieces[static_cast<size_t>(i)];
      CopyPast(piece.to, piece.from, piece.bytes);
    }
  });
}

Aside &Aside::Get() {
  static Aside aside;
  return aside;
}

void Aside::Set(Pool &pool, int64_t count, const void *const *from, void *const *to, const int64_t *bytes) {
  Finish(pool);
  for (int64_t i = 0; i < count; ++i)
    if (bytes[i] > 0) items_[from[i]] = {static_cast<uint8_t *>(to[i]), static_cast<const uint8_t *>(from[i]), bytes[i]};
  waiting_.store(!items_.empty(), std::memory_order_release);
}

void Aside::Now(Pool &pool) {
  if (!waiting()) return;
  Finish(pool);
  Done();
}

uint8_t *Aside::Take(const void *from, int64_t bytes) {
  const auto found = items_.find(from);
  if (found == items_.end() || found->second.bytes != bytes) return nullptr;
  uint8_t *to = found->second.to;
  items_.erase(found);
  return to;
}

void Aside::Finish(Pool &pool) {
  std::vector<Copy> copies;
  for (const auto &item : items_) copies.push_back(item.second);
  items_.clear();
  CopyAll(pool, copies);
}
}  // namespace msms

extern "C" {
// Puts off copying `count` buffers until an optimizer that changes them runs, or until MsmsAsideNow. What still waits from
// before is copied first. 0, or 1 when there is no memory for the list.
int MsmsAside(int64_t count, const void *const *from, void *const *to, const int64_t *bytes) try {
  msms::Pool &pool = msms::Pool::Get();
  auto lock = pool.Lock();
  msms::Aside::Get().Set(pool, count, from, to, bytes);
  return 0;
} catch (const std::bad_alloc &) {
  return 1;
}
int MsmsAsideWaits() { return msms::Aside::Get().waiting(); }
int MsmsAsideNow() try {
  msms::Pool &pool = msms::Pool::Get();
  auto lock = pool.Lock();
  msms::Aside::Get().Now(pool);
  return 0;
} catch (const std::bad_alloc &) {
  return 1;
}
}
