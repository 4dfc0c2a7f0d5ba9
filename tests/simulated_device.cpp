// A simulated accelerator for tests: PyTorch's PrivateUse1 backend with real values.
//
// Its memory is host memory behind addresses that no CPU kernel can read, so a kernel that takes a
// device tensor for a CPU tensor crashes instead of computing. All operators run on the CPU, after
// a check that their arguments are on one device. The check follows CUDA: tensors without
// dimensions may stay on the CPU in elementwise operators, and so may the indices of `x[index]`.

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;
// Addresses with this bit are not canonical: reading them raises SIGSEGV.
constexpr uintptr_t kHidden = uintptr_t(1) << 60;

thread_local c10::DeviceIndex current_device = 0;
std::atomic<bool> available{false};
std::atomic<int64_t> operators{0};

// Memory. `limit` is what the device pretends to have.

std::mutex memory_mutex;
int64_t used[kDevices] = {};
int64_t peak[kDevices] = {};
int64_t limit = int64_t(1) << 40;

struct Block {
  void* memory;
  int64_t bytes;
  c10::DeviceIndex device;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> lock(memory_mutex);
    used[block->device] -= block->bytes;
  }
  std::free(block->memory);
  delete block;
}

void* hide(void* memory) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) | kHidden);
}

void* reveal(const void* address) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) & ~kHidden);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kType, current_device);
    if (bytes == 0) {
      return {nullptr, nullptr, &release_nothing, device};
    }
    {
      std::lock_guard<std::mutex> lock(memory_mutex);
      int64_t& mine = used[current_device];
      TORCH_CHECK_WITH(
          OutOfMemoryError, mine + int64_t(bytes) <= limit,
          "simulated device out of memory: tried to allocate ", bytes, " bytes, ", mine, " of ",
          limit, " bytes are in use");
      mine += bytes;
      peak[current_device] = std::max(peak[current_device], mine);
    }
    auto* block = new Block{std::aligned_alloc(64, (bytes + 63) / 64 * 64), int64_t(bytes),
                            current_device};
    return {hide(block->memory), block, &release, device};
  }

  static void release_nothing(void*) {}

  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(reveal(to), reveal(from), bytes);
  }
};

DeviceAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kType;
  GuardImpl() = default;
  explicit GuardImpl(c10::DeviceType) {}
  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {kType, current_device};
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(
        device.index() < kDevices, "invalid device ordinal: there are ", kDevices,
        " simulated devices, got ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) {
      current_device = device.index();
    }
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kDevices;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

// Generators: each wraps a generator of the CPU, which really draws the numbers.

struct DeviceGenerator : at::CPUGeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex index)
      : at::CPUGeneratorImpl(c10::default_rng_seed_val),
        inner(at::make_generator<at::CPUGeneratorImpl>(c10::default_rng_seed_val)) {
    device_ = c10::Device(kType, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  void set_current_seed(uint64_t seed) override {
    inner.set_current_seed(seed);
  }
  uint64_t current_seed() const override {
    return inner.current_seed();
  }
  uint64_t seed() override {
    return inner.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  at::Generator inner;
};

const at::Generator& default_generator(c10::DeviceIndex index) {
  static at::Generator generators[kDevices] = {
      at::make_generator<DeviceGenerator>(0), at::make_generator<DeviceGenerator>(1)};
  return generators[index < 0 ? current_device : index];
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return available;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return available;
  }
  c10::DeviceIndex deviceCount() const override {
    return kDevices;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device;
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    current_device = index;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current_device, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(index < 0 ? current_device : index);
  }
  at::Device getDeviceFromPtr(void*) const override {
    return {kType, current_device};
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr moved = allocator.allocate(bytes);
    std::memcpy(
        reveal(moved.get()), reveal(storage.data()), std::min(bytes, size_t(storage.nbytes())));
    storage.set_data_ptr_noswap(std::move(moved));
    storage.set_nbytes(bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

// Tensors.

bool on_device(const at::Tensor& tensor) {
  return tensor.device().type() == kType;
}

// Return a CPU tensor that shares the memory of a device tensor.
at::Tensor as_cpu(const at::Tensor& tensor) {
  if (!on_device(tensor)) {
    return tensor;
  }
  if (tensor.numel() == 0) {
    return at::empty_strided(
        tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
  }
  return at::from_blob(
      reveal(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
      tensor.options().device(c10::kCPU));
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device> device, std::optional<bool>,
    std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  as_cpu(to).copy_(as_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    at::native::resize_(to, from.sizes(), std::nullopt);
  }
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  return as_cpu(tensor).item();
}

at::Tensor& set_storage(
    at::Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef size,
    c10::IntArrayRef stride) {
  return at::cpu::set_(tensor, storage, offset, size, stride);
}

// The check of devices, and the operators.

bool allows_cpu_scalar(const c10::OperatorHandle& op, const std::string& name) {
  static const std::set<std::string> more = {
      "aten::masked_fill_", "aten::masked_fill", "aten::fill_", "aten::index_put_",
      "aten::_index_put_impl_", "aten::where", "aten::floor_divide", "aten::floor_divide_"};
  return op.hasTag(at::Tag::pointwise) || more.count(name);
}

bool allows_cpu_indices(const std::string& name) {
  return name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_" ||
      name == "aten::_unsafe_index";
}

struct DeviceCheck {
  const c10::OperatorHandle& op;
  std::optional<c10::Device> found;

  void see(const c10::IValue& value, const std::string& argument) {
    if (value.isTensor()) {
      see_tensor(value.toTensor(), argument);
    } else if (value.isList()) {
      for (const c10::IValue item : value.toListRef()) {
        if (item.isTensor()) {
          see_tensor(item.toTensor(), argument);
        }
      }
    }
  }

  void see_tensor(const at::Tensor& tensor, const std::string& argument) {
    if (!tensor.defined()) {
      return;
    }
    const std::string& name = op.schema().name();
    if (tensor.device().is_cpu() && tensor.dim() == 0 && allows_cpu_scalar(op, name)) {
      return;
    }
    if (tensor.device().is_cpu() && argument == "indices" && allows_cpu_indices(name)) {
      return;
    }
    if (!found) {
      found = tensor.device();
    }
    TORCH_CHECK(
        *found == tensor.device(),
        "Expected all tensors to be on the same device, but found at least two devices, ", *found,
        " and ", tensor.device(), "! (when checking argument ", argument, " of ", name, ")");
  }
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++operators;
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  DeviceCheck check{op, std::nullopt};
  for (size_t i = 0; i < arguments.size(); ++i) {
    check.see((*stack)[first + i], arguments[i].name());
  }
  const c10::DeviceIndex index = check.found ? check.found->index() : current_device;
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (value.isGenerator()) {
      const at::Generator generator = value.toGenerator();
      const c10::Device expected = check.found.value_or(c10::Device(kType, index));
      TORCH_CHECK(
          generator.device() == expected, "Expected a '", expected,
          "' device type for generator but found '", generator.device(), "'");
      value = static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->inner;
    } else if (value.isNone() && arguments[i].type()->str() == "Generator?") {
      value = static_cast<DeviceGenerator*>(default_generator(index).unsafeGetGeneratorImpl())
                  ->inner;
    }
  }
  if (op.schema().name() == "aten::native_batch_norm") {
    // It changes the running statistics, arguments 3 and 4, although its schema does not say so.
    for (const size_t i : {3, 4}) {
      c10::IValue& statistics = (*stack)[first + i];
      if (statistics.isTensor() && statistics.toTensor().defined()) {
        statistics = as_cpu(statistics.toTensor());
      }
    }
  }
  at::native::cpu_fallback(op, stack);
}

// Controls for the tests.

void set_available(bool value) {
  available = value;
}

bool is_available() {
  return available;
}

int64_t count_operators() {
  return operators;
}

void set_limit(int64_t bytes) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  limit = bytes;
}

int64_t memory_limit() {
  return limit;
}

int64_t memory_used(int64_t device) {
  return used[device];
}

int64_t memory_peak(int64_t device, bool reset) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  const int64_t before = peak[device];
  if (reset) {
    peak[device] = used[device];
  }
  return before;
}

void seed_all(int64_t seed) {
  for (c10::DeviceIndex i = 0; i < kDevices; ++i) {
    at::Generator generator = default_generator(i);
    generator.set_current_seed(seed);
  }
}

at::Tensor get_rng_state(int64_t device) {
  return default_generator(c10::DeviceIndex(device)).get_state();
}

void set_rng_state(int64_t device, const at::Tensor& state) {
  at::Generator generator = default_generator(c10::DeviceIndex(device));
  generator.set_state(state);
}

int64_t get_device() {
  return current_device;
}

void set_device(int64_t index) {
  current_device = index;
}

} // namespace

TORCH_LIBRARY(simulated, m) {
  m.def("set_available", &set_available);
  m.def("is_available", &is_available);
  m.def("count_operators", &count_operators);
  m.def("set_limit", &set_limit);
  m.def("memory_limit", &memory_limit);
  m.def("memory_used", &memory_used);
  m.def("memory_peak", &memory_peak);
  m.def("seed_all", &seed_all);
  m.def("get_rng_state", &get_rng_state);
  m.def("set_rng_state", &set_rng_state);
  m.def("get_device", &get_device);
  m.def("set_device", &set_device);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::cpu::as_strided);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &at::native::resize_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  // PyTorch would choose the convolution by the device of its input alone.
  const auto on_cpu = [] { return torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>(); };
  m.impl("convolution", on_cpu());
  m.impl("convolution_backward", on_cpu());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

// Mixed precision casts the arguments of some operators, as on CUDA.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}
