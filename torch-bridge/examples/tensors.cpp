// Example tensors.c in C++17: handles that close themselves, errors as exceptions.
//
//   c++ -std=c++17 tensors.cpp $(pkg-config --cflags --libs tidelog) -o tensors
//   ./tensors /mnt/nvme0/tide,/mnt/nvme1/tide

#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tidelog.h"

namespace {

class Error : public std::runtime_error {
 public:
  explicit Error(int32_t code) : std::runtime_error(text()), code(code) {}
  const int32_t code;  // one of the negative codes of tidelog.h

 private:
  static std::string text() {
    std::string text(tide_last_error(nullptr, 0, nullptr) + 1, '\0');
    tide_last_error(text.data(), text.size(), nullptr);
    text.pop_back();
    return text;
  }
};

int32_t check(int32_t status) {
  if (status < 0) throw Error(status);
  return status;
}

// A transfer. Its memory belongs to the library until it is released: the destructor waits for that.
class Transfer {
 public:
  explicit Transfer(uint64_t ticket) : ticket_(ticket) {}
  Transfer(Transfer&& other) noexcept : ticket_(std::exchange(other.ticket_, 0)) {}
  Transfer(const Transfer&) = delete;
  ~Transfer() {
    if (ticket_ == 0) return;
    while (tide_ticket_released(ticket_) == 0) tide_ticket_wait(ticket_, 100);
    tide_ticket_drop(ticket_);
  }
  void wait() {
    while (check(tide_ticket_wait(ticket_, 1000)) == TIDE_WAITING) {
    }
  }

 private:
  uint64_t ticket_;
};

class Pool {
 public:
  explicit Pool(const std::string& devices) {
    tide_pool_options options{};
    options.size = sizeof options;
    options.devices = devices.c_str();
    options.data_path = "auto";
    options.staging = 8u << 20;
    options.pool_size = 256u << 20;
    check(tide_pool_open(&options, &pool_));
  }
  Pool(const Pool&) = delete;
  ~Pool() { tide_pool_close(pool_); }

  Transfer put(const char* name, const std::vector<float>& tensor) {
    uint64_t ticket;
    check(tide_put(pool_, name, tensor.data(), tensor.size() * sizeof(float), 0, &ticket));
    return Transfer(ticket);
  }
  Transfer get(const char* name, std::vector<float>& tensor) {
    uint64_t ticket;
    check(tide_get(pool_, name, 0, tensor.data(), tensor.size() * sizeof(float), TIDE_URGENT, &ticket));
    return Transfer(ticket);
  }

 private:
  uint64_t pool_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " DEVICE[,DEVICE...]\n";
    return 64;
  }
  try {
    Pool pool(argv[1]);
    const std::vector<float> tensor(1 << 18, 0.5f);
    std::vector<float> back(tensor.size());
    pool.put("activations", tensor).wait();
    pool.get("activations", back).wait();
    if (back != tensor) return 1;
    try {
      pool.get("gradients", back);
      return 1;
    } catch (const Error& error) {
      if (error.code != TIDE_NOT_FOUND) throw;
      std::cout << "as it should: " << error.what() << "\n";
    }
  } catch (const Error& error) {
    std::cerr << error.what() << " (code " << error.code << ")\n";
    return 1;
  }
  return 0;
}
