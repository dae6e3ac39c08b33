# Compile settings shared by every target, and the per-ISA source helper.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()

find_program(VECINFER_CCACHE ccache)
if(VECINFER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${VECINFER_CCACHE})
endif()

if(VECINFER_SANITIZE)
    add_compile_options(-fsanitize=${VECINFER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
    add_link_options(-fsanitize=${VECINFER_SANITIZE})
endif()

# Warnings for our own code only, so that a consumer of the installed package is not bound by them.
function(vecinfer_warnings target)
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wno-missing-field-initializers>)
endfunction()

# vecinfer_isa_sources(<target> <path stem>): adds those of <stem>_scalar.cc, <stem>_avx2.cc, <stem>_avx512.cc and
# <stem>_avx512vbmi.cc that exist, each compiled for its ISA. Contraction is off everywhere: a kernel that wants fused multiply-add
# says so, and encoding must give the same codes on all.
function(vecinfer_isa_sources target stem)
    set(isas scalar)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
        list(APPEND isas avx2 avx512 avx512vbmi)
    endif()
    set(flags_scalar -Wno-psabi)
    set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
    set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
    set(flags_avx512vbmi ${flags_avx512} -mavx512vbmi -mavx512vnni)
    foreach(isa ${isas})
        if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${stem}_${isa}.cc")
            target_sources(${target} PRIVATE ${stem}_${isa}.cc)
            set_property(SOURCE ${stem}_${isa}.cc APPEND PROPERTY COMPILE_OPTIONS -O3 -ffp-contract=off ${flags_${isa}})
        endif()
    endforeach()
endfunction()
