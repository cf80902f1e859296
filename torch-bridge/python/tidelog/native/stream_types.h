// Streams and events, as Python has them: `_module.py`.
#pragma once

#include "streams.h"

namespace tidelog::types {

// Makes the streams of a device; without one those of the host's memory.
inline std::unique_ptr<Streams> make_streams(std::optional<c10::Device> device) {
  if (!device) return std::make_unique<Streams>();
  return std::make_unique<DeviceStreams>(*device);
}

inline void add_streams(py::module_& m) {
  py::class_<c10::Event, EventPtr>(m, "Event", py::module_local())
      .def("query", &c10::Event::query)
      .def("synchronize", &c10::Event::synchronize, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("handle",
                             [](const c10::Event& event) { return reinterpret_cast<uintptr_t>(event.eventId()); });
  m.def("streams", make_streams);
  py::class_<Streams>(m, "Streams", py::module_local())
      .def("__len__", &Streams::count)
      .def("after", &Streams::after)
      .def("await_copies", &Streams::await_copies)
      .def("forget_copies", &Streams::forget_copies)
      .def("current", &Streams::current)
      .def("call_on", [](Streams& streams, int64_t stream,
                         const py::object& function) { streams.call_on(stream, function.ptr()); })
      .def("await_others", &Streams::await_others)
      .def("durations", &Streams::durations)
      .def("clock_begins", &Streams::clock_begins)
      .def("clock_ends", &Streams::clock_ends)
      .def("clock_spans", [](Streams& streams) { return py::bytes(streams.clock_spans()); })
      .def_property_readonly("copies", &Streams::copies)
      .def_readwrite("is_blind", &Streams::is_blind);
}

}  // namespace tidelog::types
