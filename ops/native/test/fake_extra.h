// An AotExtra that holds attributes in maps, so that kernels can be called without MindSpore.
#pragma once
#include <map>

#include "../src/aot_extra.h"

class FakeExtra : public AotExtra {
 public:
  std::map<std::string, int64_t> ints;
  std::map<std::string, float> floats;
  std::map<std::string, std::vector<int64_t>> lists;
  ~FakeExtra() override { delete KernelData(); }
  bool HasAttr(std::string name) override { return ints.count(name) || floats.count(name) || lists.count(name); }
  bool GetAttrBool(std::string) override { return false; }
  int64_t GetAttrInt(std::string name) override { return ints.at(name); }
  float GetAttrFloat(std::string name) override { return floats.at(name); }
  std::string GetAttrStr(std::string) override { return {}; }
  std::vector<int64_t> GetAttrIntVec(std::string name) override { return lists.at(name); }
  std::vector<float> GetAttrFloatVec(std::string) override { return {}; }
  std::vector<std::vector<int64_t>> GetAttrInt2DVec(std::string) override { return {}; }
  std::vector<std::vector<float>> GetAttrFloat2DVec(std::string) override { return {}; }
};

// Inputs and the output of one call, in the form MindSpore hands them over.
struct Call {
  std::vector<void *> data;
  std::vector<std::vector<int64_t>> dims;
  std::vector<const char *> types;
  void Add(const void *p, std::vector<int64_t> shape, const char *type) {
    data.push_back(const_cast<void *>(p));
    dims.push_back(std::move(shape));
    types.push_back(type);
  }
  template <class Entry>
  int Run(Entry entry, AotExtra *extra) {
    std::vector<int> ndims;
    std::vector<int64_t *> shapes;
    for (auto &d : dims) {
      ndims.push_back(static_cast<int>(d.size()));
      shapes.push_back(d.data());
    }
    return entry(static_cast<int>(data.size()), data.data(), ndims.data(), shapes.data(), types.data(), nullptr, extra);
  }
};
