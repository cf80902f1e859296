// The ledger, its records and the steps of a block, as Python has them: `_module.py`.
#pragma once

#include "casters.h"
#include "step.h"

namespace tidelog::types {

template <auto member>
py::object object_of(const Record& record) {
  return py::reinterpret_borrow<py::object>(record.*member != nullptr ? record.*member : Py_None);
}

template <auto member>
void set_object(Record& record, const py::object& value) {
  Held(std::exchange(record.*member, value.is_none() ? nullptr : Py_NewRef(value.ptr())));
}

inline void add_records(py::module_& m) {
  py::class_<Record, RecordPtr>(m, "Record", py::module_local())
      .def("__call__",
           [](const Record& record) {
             c10::Storage storage = record.storage();
             return storage ? std::optional(storage) : std::nullopt;
           })
      .def_property_readonly(
          "ledger", [](const Record& record) { return record.ledger; }, py::return_value_policy::reference)
      .def_property_readonly("id",
                             [](Record& record) {
                               return record.ledger != nullptr ? std::optional(record.ledger->number_of(record))
                                                               : std::nullopt;
                             })
      .def_property_readonly("state", [](const Record& record) { return record.state.load(); })
      .def_property_readonly("is_out", [](const Record& record) { return record.is_out(); })
      .def_property_readonly("loans", [](const Record& record) { return record.loans.load(); })
      .def_readonly("size", &Record::size)
      .def_readonly("present", &Record::present)
      .def_readwrite("pins", &Record::pins)
      .def_readwrite("addresses_end", &Record::addresses_end)
      .def_readonly("async_uses", &Record::async_uses)
      .def_readonly("reported", &Record::is_reported)
      .def_readonly("in_flight", &Record::in_flight)
      .def_readwrite("is_guarded", &Record::is_guarded)
      .def_readwrite("moves", &Record::moves)
      .def_readwrite("is_beside", &Record::is_beside)
      .def_readwrite("writes", &Record::writes)
      .def_readonly("aliases", &Record::aliases)
      .def_property(
          "has_address", [](const Record& record) { return record.has_address; }, &Ledger::has_address)
      .def("alias_begins", &Ledger::alias_begins)
      .def("alias_ends", &Ledger::alias_ends)
      .def_property(
          "is_alone", [](const Record& record) { return record.alone_in == Records::block; },
          [](Record& record, bool is) { record.alone_in = is ? Records::block : 0; })
      .def_property_readonly("is_slice", [](const Record& record) { return Slices::is_slice(record.memory); })
      .def_property("name", object_of<&Record::name>, set_object<&Record::name>)
      .def_property("parted", object_of<&Record::parted>, set_object<&Record::parted>)
      .def("describe", &Record::describe)
      .def("guard_text", &Record::guard_text)
      .def("guard", &Record::guard)
      .def("borrow", [](Record& record, int64_t more) {
        record.loans += more;
        record.was_borrowed |= record.loans != 0;
      });
}

// Returns the Python objects of a ledger.
inline std::vector<Held*> held_by(PyObject* ledger) {
  auto* made = reinterpret_cast<py::detail::instance*>(ledger);
  auto* self = made->simple_layout ? made->get_value_and_holder().value_ptr<Ledger>() : nullptr;
  if (self == nullptr) return {};  // it is being made
  return {&self->device, &self->access, &self->when_full};
}

// The collector of Python's sees that: a block, which has the ledger, is among it.
inline void collect_ledgers(PyHeapTypeObject* made) {
  PyTypeObject& type = made->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    for (const Held* each : held_by(self)) Py_VISIT(each->get());
    return 0;
  };
  type.tp_clear = [](PyObject* self) {
    for (Held* each : held_by(self)) *each = Held(nullptr);
    return 0;
  };
}

// Makes a ledger from the device, its streams, where its memory is, the limit, and where storages go.
inline std::unique_ptr<Ledger> make_ledger(const py::object& device, Streams& streams, c10::Device place, int64_t limit,
                                           const std::string& outside) {
  auto ledger = std::make_unique<Ledger>(place, streams, limit);
  ledger->device = borrowed(device.ptr());
  ledger->outside = outside;
  return ledger;
}

inline std::vector<std::string> unmovable(Ledger& ledger) {
  std::vector<std::string> names;
  for (const RecordPtr& each : ledger.all())
    if (c10::Storage storage = each->storage(); storage && !ledger.movable(*each->impl))
      names.push_back(each->describe());
  return names;
}

inline void add_ledgers(py::module_& m) {
  m.def("ledger", make_ledger, py::keep_alive<0, 2>());
  py::class_<Ledger>(m, "Ledger", py::module_local(), py::custom_type_setup(collect_ledgers))
      .def("connect",
           [](Ledger& ledger, const py::object& access, const py::object& when_full) {
             ledger.access = borrowed(access.ptr());
             ledger.when_full = borrowed(when_full.ptr());
           })
      // -- births and deaths
      .def("record_of",
           [](Ledger& ledger, c10::StorageImpl& storage) { return RecordPtr::reclaim_copy(ledger.record_of(storage)); })
      .def("record_of_written",
           [](Ledger& ledger, c10::StorageImpl& storage) {
             return RecordPtr::reclaim_copy(ledger.record_of_written(storage));
           })
      .def("number_of", &Ledger::number_of)
      .def("number_from", &Ledger::number_from)
      .def("reuse_numbers", &Ledger::reuse_numbers)
      .def("record_at", &Ledger::record_at)
      .def("name_of",
           [](Ledger& ledger, int64_t number) {
             RecordPtr record = ledger.record_at(number);
             return record ? std::optional(record->describe()) : std::nullopt;
           })
      .def("all", &Ledger::all)
      .def("unmovable", unmovable)
      .def("discard", &Ledger::discard)
      .def("forget", &Ledger::forget)
      .def("pause", &Ledger::pause)
      // -- where storages are, and which of them stay there
      .def("owns", &Ledger::owns)
      .def("mark", &Ledger::mark)
      .def("has_present", &Ledger::has_present)
      .def("modifies", &Ledger::modifies)
      .def("modified", &Ledger::modified)
      .def("measure_again", &Ledger::measure_again)
      .def("has_away", &Ledger::has_away)
      .def("movable", &Ledger::movable)
      .def("maps", &Ledger::maps)
      .def("look_again", &Ledger::look_again)
      .def("pin", &Ledger::pin)
      .def("unpin", &Ledger::unpin)
      .def("async_use", &Ledger::async_use)
      .def_static("begins", &Records::begins_alive)
      .def("ends", &Ledger::ends)
      // -- in what order ops and moves use memory
      .def("launches", [](Ledger& ledger, int64_t needs) { ledger.launches(needs); })
      .def("awaited_here", &Ledger::awaited_here)
      .def("share", &Ledger::share)
      .def("order", &Ledger::order)
      // -- memory that goes and comes
      .def("take", [](Ledger& ledger, Record& record) { ledger.take(record, record.guard()); })
      .def("make_room", &Ledger::make_room)
      .def("let_go", &Ledger::let_go)
      .def("let_go_at_once", &Ledger::let_go_at_once)
      // -- how much is in memory, and what the session hears
      .def("restart_peak", [](Ledger& ledger) { ledger.peak = ledger.live(); })
      .def("is_at_rest", &Ledger::is_at_rest)
      .def("begin_quiet",
           [](Ledger& ledger) {
             ledger.let_go();
             ledger.quiet = true;
           })
      .def("end_quiet", [](Ledger& ledger) { ledger.quiet = false; })
      .def("flush", &Ledger::flush)
      .def_readonly("limit", &Ledger::limit)
      .def_property_readonly("live", &Ledger::live)
      .def_property_readonly("counted", [](const Ledger& ledger) { return ledger.counted.load(); })
      .def_property_readonly("departing", &Ledger::departing)
      .def_readonly("peak", &Ledger::peak)
      .def_property_readonly("marked", [](const Ledger& ledger) { return ledger.marked.load(); })
      .def_property_readonly("access", [](const Ledger& ledger) { return py::handle(ledger.access.get()); })
      .def_readonly("outside", &Ledger::outside)
      .def_readonly("process", &Ledger::process)
      .def_readonly("quiet", &Ledger::quiet)
      .def_readwrite("expects_buckets", &Ledger::expects_buckets)
      .def_readwrite("buckets_stay", &Ledger::buckets_stay)
      .def_readwrite("newborn_is_guarded", &Ledger::newborn_is_guarded)
      .def_readwrite("newborn_moves", &Ledger::newborn_moves)
      .def_readwrite("backward_moves", &Ledger::backward_moves)
      .def_readwrite("random_state_bytes", &Ledger::random_state_bytes)
      .def_readwrite("asks_device", &Ledger::asks_device)
      .def_readwrite("is_in_child", &Ledger::is_in_child)
      .def_readonly("is_paused", &Ledger::is_paused)
      .def_readwrite("maps_memory", &Ledger::maps_memory)
      .def_readwrite("divides_from", &Ledger::divides_from)
      .def_readwrite("counts_writes", &Ledger::counts_writes);
}

// A dict: number of a storage -> 0 or `MODIFIES`.
inline Uses uses_in(const py::dict& dict) {
  Uses uses;
  for (auto [number, use] : dict) uses.push_back(number.cast<uint32_t>() | use.cast<uint32_t>());
  return uses;
}

inline py::dict dict_of(const Uses& uses) {
  py::dict dict;
  for (uint32_t use : uses) dict[py::int_(Step::storage_in(use))] = use & MODIFIES;
  return dict;
}

inline void add_steps(py::module_& m) {
  m.def("step", [](Ledger& ledger) { return std::make_unique<Step>(ledger); }, py::keep_alive<0, 1>());
  py::class_<Step>(m, "Step", py::module_local())
      .def("plan", &Step::plan)
      .def("forget_plan", &Step::forget_plan)
      .def("forget_profile", &Step::forget_profile)
      .def("leave", &Step::leave)
      .def("end_op", &Step::end_op)
      .def("touch", [](Step& step, const py::dict& uses) { step.touch(uses_in(uses)); })
      .def("end_touch", &Step::end_touch)
      .def("running_uses", [](const Step& step) { return dict_of(step.uses); })
      .def_property_readonly("has_plan", &Step::has_plan)
      .def_property_readonly("has_profile", &Step::has_profile)
      .def_readwrite("next_op", &Step::next_op)
      .def_readwrite("follows", &Step::follows)
      .def_readwrite("profiles", &Step::profiles);
}

}  // namespace tidelog::types
