// Catch2, version 2 or 3, whichever is installed. Tests include this and nothing else of Catch2;
// catch_main.cc brings main() in both cases.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#elif __has_include(<catch2/catch.hpp>)
#include <catch2/catch.hpp>
#else
#error "Catch2 is missing; install it: apt-get install catch2"
#endif
