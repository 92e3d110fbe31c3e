// Lets MindSpore's parallel pass run on a machine without an Ascend device: names the device target, and answers the
// questions about ranks that HCCL would. Nothing is executed; compilation ends where a device is asked for.
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
#define private public
#include "utils/ms_context.h"
#undef private
#include "include/utils/comm_manager.h"

namespace mindspore {
class Pretended : public CommManager {
 public:
  Pretended(unsigned rank, unsigned size) : CommManager("hccl"), rank_(rank), size_(size) {}
  bool CreateGroupSync(const std::string &, const std::vector<unsigned> &ranks) const override {
    printf("group");
    for (unsigned rank : ranks) printf(" %u", rank);
    printf("\n");
    fflush(stdout);
    return true;
  }
  bool DestroyGroup(const std::string &) const override { return true; }
  bool GetRankID(const std::string &, unsigned *rank) const override { return *rank = rank_, true; }
  bool GetRankSize(const std::string &, unsigned *size) const override { return *size = size_, true; }
  uint32_t GetRank() override { return rank_; }

 private:
  unsigned rank_, size_;
};
}  // namespace mindspore

extern "C" void pretend(unsigned rank, unsigned size) {
  using namespace mindspore;
  MsContext::GetInstance()->string_params_[MS_CTX_DEVICE_TARGET - MS_CTX_TYPE_STRING_BEGIN] = "Ascend";
  for (const char *name : {"hccl", "Ascend", "CPU"}) CommManager::Register(name, std::make_shared<Pretended>(rank, size));
}
