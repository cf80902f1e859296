// Every op of a block, and of other threads while there is one.
//
// For each op this module registers a kernel at the key `BackendSelect`, below autograd and above what computes. What
// an op uses and makes, where that is and what must come in first is decided here alone (`kernel.h`), for the memory of
// any device. Python does what is rare (`services.h`). Memory that a session asks for is given and taken here, too
// (`performer.h`). Without a block the kernels only call what torch has beneath them.

#include <pybind11/stl.h>

#include <array>
#include <map>

#include "allocator.h"
#include "compat.h"
#include "device_arena.h"
#include "guards.h"
#include "launch.h"
#include "registrations.h"
#include "stream_types.h"
#include "types.h"

using namespace tidelog;

namespace {

// One for each kernel and number of arguments. Never let go of: plans may know them.
Launch& launch_of(PyObject* func, size_t count) {
  static auto* all = new std::map<std::pair<PyObject*, size_t>, Launch>;
  auto [found, is_new] = all->try_emplace({func, count});
  if (is_new) Py_INCREF(func);  // another one never has its address
  return found->second;
}

py::object launch(const py::object& func, const py::tuple& args, const py::dict& kwargs) {
  Launched op(func.ptr(), args.ptr(), kwargs.ptr());
  return py::reinterpret_steal<py::object>(launch_of(func.ptr(), op.count())(op).release());
}

void begin_block(const py::object& step, const py::tuple& services, const py::dict& updates,
                 const py::memoryview& attention, const py::list& held, const py::list& waiting) {
  Whole::held = borrowed(held.ptr()).release();
  Whole::waiting = borrowed(waiting.ptr()).release();
  Whole::thread = pthread_self();
  auto waits = static_cast<const volatile uint32_t*>(PyMemoryView_GET_BUFFER(attention.ptr())->buf);
  Registrations::all().bring_up_to_date();
  open_block() = std::shared_ptr<Block>(new Block(step, services, updates, waits), End());
  Workers::begin();
}

void end_block() {
  Workers::end();
  open_block() = nullptr;
}

void suspend(bool on) {
  if (open_block()) Workers::suspend(on);
}

void observe(const py::object& function) {
  if (open_block()) open_block()->observer = function.is_none() ? Held(nullptr) : borrowed(function.ptr());
}

py::object connect_session(const py::object& session, Ledger& ledger, const py::object& requests,
                           const py::object& parts, const py::object& allocated, const py::object& wait_ms,
                           const py::tuple& async_uses) {
  auto performer = std::make_unique<Performer>(ledger, requests.ptr(), parts.ptr(), allocated.ptr(), wait_ms.ptr());
  return py::reinterpret_steal<py::object>(Performer::connected(session.ptr(), std::move(performer), async_uses.ptr()));
}

void storages_have(py::object update) { Ledger::update_of = update.release().ptr(); }

bool finalizers_begin() {
  bool are_inside = where() == Where::inside;
  if (are_inside) move_to(Where::in_finalizer);
  return are_inside;
}

RecordPtr record_in(const c10::StorageImpl& storage) {
  Record* record = Records::of(storage);
  return record != nullptr && record->ledger != nullptr ? RecordPtr::reclaim_copy(record) : RecordPtr();
}

// Returns whether a storage that torch calls not resizable has memory that may be nobody else's.
bool may_be_own(const c10::StorageImpl& storage) {
  Record* record = Records::of(storage);
  return !storage.resizable() && ((record != nullptr && record->is_owner) || Records::can_own(storage));
}

void learn_slices() {
  py::object slice = py::module_::import("torch").attr("UntypedStorage")(2)[py::slice(0, 1, 1)];
  Slices::learn(*THPStorage_Unpack(slice.ptr()).unsafeGetStorageImpl());
}

// An array of NumPy's, and a tensor that torch has made of it.
void learn_arrays(const py::object& array, const at::Tensor& tensor) {
  Arrays::learn(tensor.storage().data_ptr(), array.ptr());
}

// The storage that this one is a slice of.
std::optional<c10::Storage> whole_of(const c10::StorageImpl& storage) {
  c10::StorageImpl* whole = Slices::whole_of(Records::owned_memory_of(storage));
  if (whole == nullptr) return std::nullopt;
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(whole));
}

void empty(c10::StorageImpl& storage, Message message) {
  Records::take(storage, std::move(message));
  storage.set_nbytes(size_t{0});
}

void exchange(c10::StorageImpl& storage, c10::StorageImpl& other, Message message, const py::object& noting) {
  Records::swap(storage, other, std::move(message));
  checked(PyObject_CallNoArgs(noting.ptr()));
}

// Addresses of the library's functions.
bool use_allocator(uint64_t allocate, uint64_t free) {
  return ArenaAllocator::use(reinterpret_cast<ArenaAllocator::Allocate>(allocate),
                             reinterpret_cast<ArenaAllocator::Free>(free));
}

// Has blocks of torch's come from an arena. `addresses`: of the library's functions. `device` has the streams.
void open_arena(uint64_t arena, uint64_t least, std::array<uint64_t, 5> addresses, c10::Device place,
                c10::Device device) {
  auto [allocate, use, free, free_part, allocate_part] = addresses;
  ArenaCalls calls;
  calls.allocate = reinterpret_cast<decltype(calls.allocate)>(allocate);
  calls.use = reinterpret_cast<decltype(calls.use)>(use);
  calls.free = reinterpret_cast<decltype(calls.free)>(free);
  calls.free_part = reinterpret_cast<decltype(calls.free_part)>(free_part);
  calls.allocate_part = reinterpret_cast<decltype(calls.allocate_part)>(allocate_part);
  DeviceArena::open(arena, least, calls, place, device);
  if (place.type() != c10::DeviceType::CUDA) ArenaInFront::install(place.type());
}

void close_arena() {
  DeviceArena::close();
  ArenaInFront::remove();
}

// Returns the addresses of what cuda_allocator.cpp calls, in its order.
std::array<uintptr_t, 3> arena_functions() {
  auto* allocate = +[](size_t size) { return DeviceArena::allocate(size).release_context(); };
  return {reinterpret_cast<uintptr_t>(allocate), reinterpret_cast<uintptr_t>(&DeviceArena::use),
          reinterpret_cast<uintptr_t>(&DeviceArena::ended)};
}

}  // namespace

PYBIND11_MODULE(_tidelog_native, m) {
  // As functions of torch's do.
  py::register_local_exception_translator(
      [](std::exception_ptr raised) { torch::translate_exception_to_python(raised); });
  learn_slices();
  types::add_records(m);
  types::add_streams(m);
  types::add_ledgers(m);
  types::add_steps(m);
  types::add_guard<types::Inside>(m, "Inside");
  types::add_guard<types::Unseen>(m, "Unseen");
  types::add_guard<types::BetweenOps>(m, "BetweenOps");
  types::add_guard<types::Seen>(m, "Seen");
  // -- a block and its ops
  m.def("open", begin_block);
  m.def("close", end_block);
  m.def("suspend", suspend);
  m.def("connect", connect_session);
  m.def("launch", launch);
  m.def("observe", observe);
  m.def("passed", [] { return passed.load(); });
  m.def("performed", [] { return performed.load(); });
  m.def("meet_new_ops", [] { Registrations::all().bring_up_to_date(); });
  // -- where threads are
  m.def("is_busy", [] { return Whole::depth != 0; });
  m.def("is_under_way", [] { return Whole::depth != 0 || UnderWay::count != 0; });
  m.def("is_under_way_here", [] { return Whole::here != 0 || UnderWay::here != 0; });
  m.def("is_inside", [] { return where() == Where::inside; });
  m.def("finalizers_begin", finalizers_begin);
  m.def("finalizers_end", [] { move_to(Where::inside); });
  m.def("works", [](bool does) { works_for_block = does; });
  m.def("works_here", [] { return Workers::is_open() && Workers::have_this_thread(); });
  // -- what is known of storages
  m.def("storages_have", storages_have);
  m.def("record_in", record_in);
  m.def("record_for", [](c10::StorageImpl& storage) { return RecordPtr::reclaim_copy(&Records::made_for(storage)); });
  m.def("whole_of", whole_of);
  m.def("references_to_object", [](const py::object& tensor) {
    return references_to_object(*THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl());
  });
  m.def("learn_arrays", learn_arrays);
  m.def("maps_file", &Slices::is_private_mapping);
  m.def("may_be_own", may_be_own);
  m.def("forget_alone", [] { ++Records::block; });
  m.def("is_own", &Records::is_own);
  m.def("update_on", [](c10::StorageImpl& storage) {
    return py::reinterpret_steal<py::object>(Ledger::update_on(storage).release());
  });
  // -- how they lose memory and get it
  m.def("take", [](c10::StorageImpl& storage, Message message) { Records::take(storage, std::move(message)); });
  m.def("empty", empty);
  m.def("give", [](c10::StorageImpl& storage, size_t size, Message message) {
    return Records::give(storage, size, std::move(message));
  });
  m.def("swap", exchange);
  m.def("discard", [](c10::StorageImpl& storage) { Records::give(storage, 0, std::nullopt); });
  m.def("guard", tidelog::guard);
  m.def("open_to_reads", &Guard::lift);
  m.def("without_memory", tidelog::without_memory);
  m.def("use_allocator", use_allocator);
  m.def("open_arena", open_arena);
  m.def("close_arena", close_arena);
  m.def("pause_arena", &DeviceArena::pause);
  m.def("is_in_arena",
        [](const c10::StorageImpl& storage) { return DeviceArena::has(Records::owned_memory_of(storage)); });
  m.def("free_part_of_arena", &DeviceArena::free_part);
  // It may wait for who has the memory.
  m.def("allocate_part_of_arena", &DeviceArena::allocate_part, py::call_guard<py::gil_scoped_release>());
  m.def("arena_functions", arena_functions);
  m.def("arena_is_before",
        [](uintptr_t ended) { DeviceArena::set_beneath(reinterpret_cast<c10::DeleterFnPtr>(ended)); });
}
