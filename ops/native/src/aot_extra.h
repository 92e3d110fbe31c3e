// The part of MindSpore's AotExtra interface that custom CPU operators use, without MindSpore's headers.
// The order of the virtual functions and the two data members is MindSpore 2.10's; strings use the old libstdc++ ABI
// (build with -D_GLIBCXX_USE_CXX11_ABI=0).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

struct AotKernelData {
  virtual ~AotKernelData() = default;
};

class AotExtra {
 public:
  virtual ~AotExtra() = default;
  virtual bool HasAttr(std::string name) = 0;
  virtual bool GetAttrBool(std::string name) = 0;
  virtual int64_t GetAttrInt(std::string name) = 0;
  virtual float GetAttrFloat(std::string name) = 0;
  virtual std::string GetAttrStr(std::string name) = 0;
  virtual std::vector<int64_t> GetAttrIntVec(std::string name) = 0;
  virtual std::vector<float> GetAttrFloatVec(std::string name) = 0;
  virtual std::vector<std::vector<int64_t>> GetAttrInt2DVec(std::string name) = 0;
  virtual std::vector<std::vector<float>> GetAttrFloat2DVec(std::string name) = 0;
  void SetWorkSpace(const std::vector<size_t> &bytes) { workspace_ = bytes; }
  void SetKernelData(AotKernelData *data) { kernel_data_ = data; }
  AotKernelData *KernelData() const { return kernel_data_; }

 private:
  std::vector<size_t> workspace_;
  AotKernelData *kernel_data_{nullptr};
};
