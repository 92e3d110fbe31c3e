// Calls an entry point of the native library as MindSpore would, without a graph: attributes from text, arrays from
// the caller. Built by the tests with the library's own flags.
#include <dlfcn.h>

#include <map>
#include <sstream>
#include <stdexcept>

#include "aot_extra.h"

namespace {
// Attributes as "name value value ...;name value ...".
class Attrs : public AotExtra {
 public:
  explicit Attrs(const std::string &text) {
    std::istringstream all(text);
    for (std::string item; std::getline(all, item, ';');) {
      std::istringstream words(item);
      std::string name, word;
      words >> name;
      auto &list = values_[name];
      while (words >> word) list.push_back(word);
    }
  }
  bool HasAttr(std::string name) override { return values_.count(name) > 0; }
  bool GetAttrBool(std::string name) override { return GetAttrInt(name) != 0; }
  int64_t GetAttrInt(std::string name) override { return std::stoll(values_.at(name).at(0)); }
  float GetAttrFloat(std::string name) override { return std::stof(values_.at(name).at(0)); }
  std::string GetAttrStr(std::string name) override { return values_.at(name).at(0); }
  std::vector<int64_t> GetAttrIntVec(std::string name) override {
    std::vector<int64_t> out;
    for (const auto &word : values_.at(name)) out.push_back(std::stoll(word));
    return out;
  }
  std::vector<float> GetAttrFloatVec(std::string) override { return {}; }
  std::vector<std::vector<int64_t>> GetAttrInt2DVec(std::string) override { return {}; }
  std::vector<std::vector<float>> GetAttrFloat2DVec(std::string) override { return {}; }

 private:
  std::map<std::string, std::vector<std::string>> values_;
};

using Init = int (*)(int *, int64_t **, const char **, AotExtra *);
using Infer = std::vector<int64_t> (*)(int *, int64_t **, AotExtra *);
using Kernel = int (*)(int, void **, int *, int64_t **, const char **, void *, void *);

struct Operator {
  Attrs attrs;
  Init init;
  Infer infer;
  Kernel kernel;
  ~Operator() { delete attrs.KernelData(); }
};
}  // namespace

extern "C" void *Open(const char *path, const char *entry, const char *attrs) {
  void *library = dlopen(path, RTLD_NOW);
  if (!library) return nullptr;
  const std::string name(entry);
  auto find = [&](const char *suffix) { return dlsym(library, (name + suffix).c_str()); };
  auto *op = new Operator{Attrs(attrs), reinterpret_cast<Init>(find("Init")),
                          reinterpret_cast<Infer>(find("InferShape")), reinterpret_cast<Kernel>(find(""))};
  if (op->init && op->infer && op->kernel) return op;
  delete op;
  return nullptr;
}
extern "C" void Close(void *op) { delete static_cast<Operator *>(op); }
extern "C" int Start(void *op, int *nd, int64_t **shapes, const char **dtypes) {
  auto *o = static_cast<Operator *>(op);
  return o->init(nd, shapes, dtypes, &o->attrs);
}
// The rank of the output; its sizes go to `out` (room for 8).
extern "C" int Shape(void *op, int *nd, int64_t **shapes, int64_t *out) {
  auto *o = static_cast<Operator *>(op);
  const auto shape = o->infer(nd, shapes, &o->attrs);
  for (size_t i = 0; i < shape.size() && i < 8; ++i) out[i] = shape[i];
  return static_cast<int>(shape.size());
}
extern "C" int Call(void *op, int n, void **p, int *nd, int64_t **shapes, const char **dtypes) {
  auto *o = static_cast<Operator *>(op);
  return o->kernel(n, p, nd, shapes, dtypes, nullptr, &o->attrs);
}
