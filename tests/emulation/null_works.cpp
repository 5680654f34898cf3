// What Python cannot make: no Work at all, which is what NCCL gives for a synchronous collective, and a Work whose
// wait() returns at once, which C++ (DDP's reducer, functional collectives) may call as well. And gloo's own kernels under
// another dispatch key, where they stay when Python replaces those for the CPU.
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>
#include <atomic>
#include <condition_variable>
#include <unordered_map>

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct Ordered : c10d::Work {
  const int64_t number;  // the item's, in strict_stream.py
  const bool blocks;     // a barrier's wait() blocks the host
  std::vector<at::Tensor> results;
  std::atomic<bool> waited{false}, taken{false}, done{false};
  std::string error;
  std::mutex lock;
  std::condition_variable ended;
  c10::intrusive_ptr<c10::ivalue::Future> future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));

  Ordered(int64_t number, bool blocks, std::vector<at::Tensor> results)
      : number(number), blocks(blocks), results(std::move(results)) {}
  bool isCompleted() override { return done; }
  bool isSuccess() const override { return error.empty(); }
  bool wait(std::chrono::milliseconds) override {
    std::unique_lock<std::mutex> guard(lock);
    waited = true;
    if (blocks) ended.wait(guard, [&] { return done.load(); });
    TORCH_CHECK(error.empty(), error);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return results; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { taken = true; return future; }
  void finish(const std::string& what) {
    { std::lock_guard<std::mutex> guard(lock); error = what; done = true; }
    ended.notify_all();
    if (what.empty()) future->markCompleted(c10::IValue(results));
    else future->setError(std::make_exception_ptr(std::runtime_error(what)));
    results.clear();
  }
};

static std::unordered_map<std::string, c10::SafeKernelFunction> plain;

static void call_plain(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  plain.at(op.operator_name().name).callBoxed(op, keys, stack);
}

TORCH_LIBRARY_IMPL(c10d, PrivateUse3, m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("c10d::", 0) != 0) continue;
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    plain.emplace(name.name, op->getComputedKernelForDispatchKey(c10::DispatchKey::CPU));
    m.impl(name.name.c_str(), torch::CppFunction::makeFromBoxedFunction<&call_plain>());
  }
}

static Ordered* of(const WorkPtr& work) { return dynamic_cast<Ordered*>(work.get()); }

TORCH_LIBRARY(strict, m) {
  m.def("no_work() -> __torch__.torch.classes.c10d.Work", []() -> WorkPtr { return {}; });
  m.def("work(int number, bool blocks, Tensor[] results) -> __torch__.torch.classes.c10d.Work",
        [](int64_t number, bool blocks, std::vector<at::Tensor> results) -> WorkPtr {
          return c10::make_intrusive<Ordered>(number, blocks, std::move(results));
        });
  m.def("spin(int address) -> ()", [](int64_t address) {  // until *address is set: a host that waits as CUDA's does
    auto flag = reinterpret_cast<std::atomic<int>*>(address);
    while (!flag->load()) {}
  });
  m.def("number(__torch__.torch.classes.c10d.Work work) -> int",
        [](const WorkPtr& work) -> int64_t { return of(work) ? of(work)->number : -1; });
  m.def("waited(__torch__.torch.classes.c10d.Work work) -> bool",
        [](const WorkPtr& work) -> bool { return of(work)->waited || of(work)->taken; });
  m.def("was_taken(__torch__.torch.classes.c10d.Work work) -> bool",
        [](const WorkPtr& work) -> bool { return of(work)->taken; });
  m.def("give_back(__torch__.torch.classes.c10d.Work work) -> ()",
        [](const WorkPtr& work) { of(work)->taken = false; });
  m.def("finish(__torch__.torch.classes.c10d.Work work, str error) -> ()",
        [](const WorkPtr& work, std::string error) { of(work)->finish(error); });
}
