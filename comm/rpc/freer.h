// A deleter for std::unique_ptr that calls a function of a C library.
//
//   using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
#pragma once

namespace syncline {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

}  // namespace syncline
